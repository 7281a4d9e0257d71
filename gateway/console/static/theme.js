// Runs before the page is drawn, so that it never flashes in the other theme.
(() => {
  const kept = localStorage.getItem("tidelog-theme");
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
})();
