// What the theme makes while the page loads: tables that scroll are reached by keyboard, and the buttons of each code block have a name.
window.addEventListener("load", () => {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap")) each.tabIndex = 0;
  document.querySelectorAll(".md-code__nav").forEach((each, place) => each.setAttribute("aria-label", `Code block ${place + 1}`));
});
