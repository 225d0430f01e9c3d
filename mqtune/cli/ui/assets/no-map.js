// Plotly brings the style of its maps as an element, which the policy of this page forbids, unless there is one of its id. No chart is a map.
const found = document.getElementById.bind(document);
document.getElementById = (id) => (/^[0-9a-f]{64}$/.test(id) ? document.documentElement : found(id));
