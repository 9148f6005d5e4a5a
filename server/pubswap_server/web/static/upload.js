"use strict";
// Sends a chosen file as it is, and shows how far it is and what the coordinator says of it.

function send(input) {
  const said = document.getElementById(input.getAttribute("aria-describedby"));
  const say = (words, refused) => {
    said.textContent = words;
    said.classList.toggle("alert", refused);
  };
  const request = new XMLHttpRequest();
  request.open("PUT", input.dataset.put);
  request.setRequestHeader("X-Form-Token", input.dataset.token);
  request.responseType = "json";
  request.upload.onprogress = (event) =>
    say(event.loaded < event.total ? `Sending, ${Math.floor((100 * event.loaded) / event.total)} %` : "Checking …", false);
  request.onload = () => {
    if (request.status < 300) return location.assign(request.response.to);
    say(request.response?.detail || `The coordinator answered with status ${request.status}.`, true);
    input.value = "";
  };
  request.onerror = () => {
    say("The coordinator cannot be reached. Choose the file again.", true);
    input.value = "";
  };
  say("Sending …", false);
  request.send(input.files[0]);
}

for (const input of document.querySelectorAll("input[data-put]")) {
  input.addEventListener("change", () => input.files.length && send(input));
}
