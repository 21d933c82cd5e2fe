// What is shown in place, and formats.
// Makes the children of a host like these, in place: focus, selection and scrolling stay where they are.
function show(host, ...wanted) {
  const old = [...host.childNodes];
  wanted.forEach((child, place) => {
    const was = old[place];
    if (was === undefined) host.append(child);
    else if (was.nodeName !== child.nodeName || was.id !== child.id) was.replaceWith(child);
    else if (was.nodeType === Node.TEXT_NODE) {
      if (was.data !== child.data) was.data = child.data;
    } else {
      sameAttributes(was, child);
      show(was, ...child.childNodes);
    }
  });
  for (const was of old.slice(wanted.length)) was.remove();
}

function sameAttributes(was, wanted) {
  for (const { name } of [...was.attributes]) if (!wanted.hasAttribute(name) && name !== "open" && name !== "style") was.removeAttribute(name);
  for (const { name, value } of wanted.attributes) if (name !== "style" && was.getAttribute(name) !== value) was.setAttribute(name, value);
  if (was.style.cssText !== wanted.style.cssText) was.style.cssText = wanted.style.cssText;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function usd(value) {
  const digits = Math.abs(value) >= 10000 ? 0 : Math.abs(value) < 0.995 && value !== 0 ? 3 : 2;
  return `$${grouped(value, digits)}`;
}

function percent(part, whole) {
  return whole > 0 ? `${grouped(100 * part / whole, 1)} %` : "–";
}

function lasting(seconds) {
  if (seconds < 9.95) return `${grouped(seconds, 1)} s`;
  if (seconds < 100) return `${grouped(seconds, 0)} s`;
  if (seconds < 5990) return `${grouped(Math.round(seconds / 60), 0)} min`;
  return `${grouped(seconds / 3600, 1)} h`;
}
