"use strict";
// The page is whole without this: it copies commands, opens what a link or the printer points into.
for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      // No clipboard for this page: what is selected can be copied by hand.
      getSelection().selectAllChildren(code);
      button.textContent = "selected";
      return;
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}
for (const button of document.querySelectorAll("button.open-all")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const blocks = [...document.querySelectorAll("details.target")];
    const open = blocks.some((block) => !block.open);
    for (const block of blocks) block.open = open;
    button.textContent = open ? "close all" : "open all";
  });
}
const reveal = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const block = target && target.closest("details");
  if (block && !block.open) {
    block.open = true;
    target.scrollIntoView();
  }
};
addEventListener("hashchange", reveal);
reveal();
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll(".finding > details:not([open]), details.target:not([open])")];
  for (const block of opened) block.open = true;
});
addEventListener("afterprint", () => {
  for (const block of opened) block.open = false;
});
