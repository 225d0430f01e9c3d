// Runs before the theme's search worker, in the same file. The theme adds a wildcard to each word of a query. So "a" would
// match every word that begins with an a, and "stop" would match "stopping" as well as "stop".
addEventListener("message", ({ data: message }) => {
  if (message.type !== 2 || message.data.includes('"')) return;
  const words = message.data.split(/\s+/).map((word) => word.replace(/[.,;:!?]+$/, ""));
  const telling = words.filter((word) => lunr.stopWordFilter(word.toLowerCase()));
  const exact = telling.filter((word) => /^[\w.]+$/.test(word)).map((word) => `${word}^2`);
  if (telling.length) message.data = [...telling, ...exact].join(" ");
});
