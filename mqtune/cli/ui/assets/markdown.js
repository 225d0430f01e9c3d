// Converts Markdown notes to elements: headings, lists, quotes, code, emphasis and links. HTML and all else stay text.
import { el } from "./elements.js";

const SAFE = /^(https?:|mailto:)/i;
// Each emphasised part ends at the next mark of its kind. So matching hostile notes takes no longer than others.
const INLINE =
  /(?<!`)(`{1,3})([^`]+)\1(?!`)|\*\*(?=[^\s*])([^*]*[^\s*])\*\*|(?<![\w*])\*(?=[^\s*])([^*]*[^\s*])\*(?![\w*])|(?<!\w)_(?=[^\s_])([^_]*[^\s_])_(?!\w)|\[([^[\]]*)\]\(\s?([^()\s]*)\s?\)|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?])/g;
const DEEPEST = 4;

// Returns a link that opens a new tab, or null. The new tab gets no reference to this page.
function link(text, address) {
  let url;
  try {
    url = SAFE.test(address) ? new URL(address) : undefined;
  } catch {
    url = undefined;
  }
  return url ? el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow" }, text) : null;
}

function inline(text, depth = 0) {
  if (depth > DEEPEST) return [text];
  const found = [];
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, , code, strong, star, under, label, address, bare] = match;
    const node =
      code !== undefined
        ? el("code", {}, code)
        : strong !== undefined
          ? el("strong", {}, inline(strong, depth + 1))
          : star !== undefined || under !== undefined
            ? el("em", {}, inline(star ?? under, depth + 1))
            : bare !== undefined
              ? link(bare, bare)
              : link(inline(label, DEEPEST), address);
    found.push(text.slice(from, match.index), node ?? whole);
    from = match.index + whole.length;
  }
  return [...found, text.slice(from)].filter((each) => each !== "");
}

const BULLET = /^\s{0,3}[-*+]\s+(.*)$/,
  NUMBERED = /^\s{0,3}\d{1,9}[.)]\s+(.*)$/,
  HEADING = /^(#{1,6})\s+(.*)$/,
  QUOTE = /^\s{0,3}>\s?(.*)$/,
  FENCE = /^\s{0,3}(```+|~~~+)/;

// Returns the elements for a text.
export function markdown(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n"),
    blocks = [];
  const isPlain = (line) => line.trim() && ![BULLET, NUMBERED, HEADING, QUOTE, FENCE].some((each) => each.test(line));
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    const gather = (test) => {
      const some = [];
      while (at < lines.length && test.test(lines[at])) some.push(test.exec(lines[at++])[1]);
      return some;
    };
    const fence = FENCE.exec(line),
      heading = HEADING.exec(line);
    if (!line.trim()) at += 1;
    else if (fence) {
      const code = [];
      for (at += 1; at < lines.length && !lines[at].trim().startsWith(fence[1]); at += 1) code.push(lines[at]);
      at += 1;
      blocks.push(el("pre", {}, el("code", {}, code.join("\n"))));
    } else if (heading) {
      at += 1;
      blocks.push(el(heading[1].length < 3 ? "h3" : "h4", {}, inline(heading[2])));
    } else if (BULLET.test(line))
      blocks.push(
        el(
          "ul",
          {},
          gather(BULLET).map((each) => el("li", {}, inline(each))),
        ),
      );
    else if (NUMBERED.test(line))
      blocks.push(
        el(
          "ol",
          {},
          gather(NUMBERED).map((each) => el("li", {}, inline(each))),
        ),
      );
    else if (QUOTE.test(line))
      blocks.push(
        el(
          "blockquote",
          {},
          gather(QUOTE).flatMap((each, index) => [...(index ? [el("br", {})] : []), ...inline(each)]),
        ),
      );
    else {
      const some = [];
      while (at < lines.length && isPlain(lines[at])) some.push(lines[at++]);
      blocks.push(
        el(
          "p",
          {},
          some.flatMap((each, index) => [...(index ? [el("br", {})] : []), ...inline(each)]),
        ),
      );
    }
  }
  return blocks;
}
