"""What a person looks at: tables, figures and one page that holds them all."""
