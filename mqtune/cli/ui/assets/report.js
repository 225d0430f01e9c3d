// Draws the charts of an exported report. Their data is in the report.
"use strict";

const pictures = JSON.parse(document.getElementById("pictures").textContent);
document.querySelectorAll(".chart").forEach((card) => {
  const { panels, height, scales } = pictures[card.dataset.kind],
    box = card.querySelector(".plots");
  for (const panel of panels) {
    const part = document.createElement("div"),
      title = document.createElement("div"),
      node = document.createElement("div");
    title.className = "panel-title";
    title.textContent = [panel.title || (panels.length > 1 ? panel.key : ""), panel.note].filter(Boolean).join(" · ");
    node.className = scales.length ? "plot parallel" : panels.length > 3 ? "plot small" : "plot";
    if (height) node.style.height = `${height}px`;
    node.panel = panel;
    part.append(title, node);
    box.append(part);
  }
});
const drawAll = () => document.querySelectorAll(".plot").forEach((node) => draw(node, node.panel));
drawAll();
dark.addEventListener("change", drawAll);
