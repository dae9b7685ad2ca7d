// What every page of the book does beyond the theme, without a library:
// figures open at full size, and boxes that scroll sideways can be reached by keyboard.
(() => {
  "use strict";

  // Figures: a picture that is small on this screen opens at its own size.
  const enlarge = (image) => {
    const dialog = document.createElement("dialog");
    dialog.className = "csa-zoom-dialog";
    dialog.setAttribute("aria-label", "Figure at full size");
    const close = document.createElement("button");
    close.type = "button";
    close.textContent = "Close";
    const box = document.createElement("div");
    box.tabIndex = 0; // it scrolls
    const copy = new Image();
    [copy.src, copy.alt] = [image.currentSrc || image.src, image.alt];
    box.append(copy);
    dialog.append(close, box);
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  };
  const prepareFigures = () => {
    for (const image of document.querySelectorAll("article figure img, article .cell_output img")) {
      if (image.closest("a, button, .csa-film")) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "csa-zoom";
      button.title = "Open at full size";
      image.replaceWith(button);
      button.append(image);
      button.addEventListener("click", () => enlarge(image));
    }
  };

  // Boxes: reachable by keyboard if, and only if, there is something to scroll.
  const BOXES = [
    ["div.math, mjx-container", "formula"],
    [".csa-claims, .csa-verdict", "table of claims"],
    ["table.table", "table"],
    [".cell_input pre, .highlight pre", "code"],
    [".cell_output .output, .cell_output pre", "output"],
  ];
  const prepareBoxes = () => {
    for (const [selector, name] of BOXES) {
      for (const box of document.querySelectorAll(`article :is(${selector})`)) {
        const style = getComputedStyle(box);
        const scrolls = box.scrollWidth > box.clientWidth + 1 && /auto|scroll/.test(style.overflowX);
        if (scrolls && !box.hasAttribute("tabindex")) {
          box.tabIndex = 0;
          box.dataset.csaScrolls = "";
          if (!box.matches("table")) {
            box.setAttribute("role", "group");
            box.setAttribute("aria-label", `${name}, scrolls sideways`);
          }
        } else if (!scrolls && "csaScrolls" in box.dataset) {
          for (const attribute of ["tabindex", "role", "aria-label", "data-csa-scrolls"]) box.removeAttribute(attribute);
        }
      }
    }
  };

  const prepare = () => {
    prepareFigures();
    prepareBoxes();
    const math = window.MathJax && MathJax.startup && MathJax.startup.promise;
    if (math) math.then(prepareBoxes);
    let waiting = 0;
    addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(prepareBoxes, 150);
    });
    document.addEventListener("toggle", prepareBoxes, true); // a fold was opened
  };
  if (document.readyState === "complete") prepare();
  else addEventListener("load", prepare);
})();
