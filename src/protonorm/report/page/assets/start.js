// Draw everything, and handle the light or dark mode switch.
const theme = byId("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : dark.matches);
const tellTheme = () => theme.setAttribute("aria-pressed", String(isDark()));
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  tellTheme();
});
dark.addEventListener("change", tellTheme);
tellTheme();

document.querySelectorAll("[data-group]").forEach(lineGroup);
parts();
heatMap();
sphere();
trafficBars();
gains();
