"use strict";
// Images: scaled down to what a model can use, so that a photograph does not make a large request.

const LONGEST = 1536, SMALL = 2 ** 20;
async function showImages(files) {
  if (!model?.images) { trouble("This model cannot see images."); return; }
  for (const file of files) {
    try { shown.push(await dataUrl(file)); } catch { trouble(`${file.name || "What you pasted"} is not an image that can be read.`); }
  }
  drawShown(); $("prompt").focus();
}
async function dataUrl(file) {
  const bitmap = await createImageBitmap(file), scale = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && file.size < SMALL && /^image\/(png|jpeg|webp)$/.test(file.type)) return await asUrl(file);
  const canvas = make("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale)); canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff"; context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}
function asUrl(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result); reader.onerror = failed; reader.readAsDataURL(file);
  });
}
function drawShown() {
  $("shown").replaceChildren(...shown.map((url, i) => {
    const button = tool("", () => { shown.splice(i, 1); drawShown(); });
    button.title = "Remove this image"; button.setAttribute("aria-label", button.title); button.append(picture(url));
    return button;
  }));
  toEnd();
}
