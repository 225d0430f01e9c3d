// Draws the pictures of a report, which stand in it.
"use strict";

const pictures = JSON.parse(document.getElementById("pictures").textContent);
const drawAll = () => document.querySelectorAll(".plot").forEach((node) => draw(node, pictures[node.dataset.kind]));
drawAll();
dark.addEventListener("change", drawAll);
