// A slider that turns over pictures made beforehand: no kernel, no network, no library.
// The page holds <figure class="csa-film"> elements; this sets up all that are new.
(() => {
  const setUp = (root) => {
    root.dataset.ready = "yes";
    const values = JSON.parse(root.dataset.values);
    const slider = root.querySelector("input");
    const readout = root.querySelector("output");
    const pictures = [...root.querySelectorAll("img")];
    const show = () => {
      const i = Number(slider.value);
      pictures.forEach((picture, j) => picture.toggleAttribute("hidden", i !== j));
      readout.textContent = values[i];
      slider.setAttribute("aria-valuetext", values[i]);
    };
    slider.addEventListener("input", show);
    root.querySelector(".csa-controls").hidden = false;
    show();
  };

  document.querySelectorAll("figure.csa-film:not([data-ready])").forEach(setUp);
})();
