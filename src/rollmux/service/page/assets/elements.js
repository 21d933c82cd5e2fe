// What the live page and the report of a simulation share. Text only ever enters as text nodes.
function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

function clamp(value, low, high) {
  return Math.max(low, Math.min(high, value));
}

// A page of many jobs has thousands of figures, and to make a format takes longer than to use it.
const formats = new Map();

function grouped(value, digits) {
  if (!formats.has(digits)) formats.set(digits, new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  return formats.get(digits).format(value);
}

function counted(count, one, many) {
  return `${grouped(count, 0)} ${count === 1 ? one : many}`;
}

// Numbers in names count as numbers: node-9 stands before node-10.
const natural = new Intl.Collator("en", { numeric: true }).compare;
