/* Keeps the page as new as the memory: every two seconds the part that changes is read again, more
   rarely where that takes long. Focus, scrolling and opened details stay; nothing is asked while
   nobody looks. */
(function () {
  "use strict";

  var EVERY = 2000;
  var PATIENCE = 15000;
  var REST = 4;
  var part = document.getElementById("audit-part");
  var state = document.getElementById("audit-state");
  var pause = document.getElementById("audit-pause");
  var paused = false;
  var timer = null;
  var round = 0;
  var last = null;
  var fresh = new Date();

  function address() {
    var url = new URL(window.location.href);
    url.searchParams.set("part", "1");
    return url;
  }

  // A live region speaks when its text changes: so it says "live" once, and no time.
  function say(text, stale) {
    if (state.textContent !== text) {
      state.textContent = text;
    }
    state.classList.toggle("audit-stale", stale);
  }

  function clock(moment) {
    return moment.toLocaleTimeString();
  }

  function selecting() {
    var selection = window.getSelection();
    return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  }

  // Where the focus is: the same link may stand in several tables, and more than once in one.
  function focused() {
    var own = document.activeElement;
    if (!own || own === part || !part.contains(own)) {
      return null;
    }
    var home = "#" + CSS.escape(own.closest("[id]").id);
    var selector = home;
    if (!own.id) {
      selector += own.tagName === "SUMMARY" ? " > summary" : ' a[href="' + CSS.escape(own.getAttribute("href") || "") + '"]';
    }
    return { home: home, selector: selector, place: Array.prototype.indexOf.call(document.querySelectorAll(selector), own) };
  }

  // What had the focus may be gone: then what it stood in has it, so that Tab goes on from there.
  function focus(at) {
    var found = document.querySelectorAll(at.selector);
    var again = found[Math.min(at.place, found.length - 1)] || document.querySelector(at.home) || part;
    again.focus({ preventScroll: true });
    if (!part.contains(document.activeElement)) {
      part.focus({ preventScroll: true });
    }
  }

  function each(selector, act) {
    Array.prototype.forEach.call(part.querySelectorAll(selector), act);
  }

  function replace(html) {
    if (html === last || selecting()) {
      return;
    }
    last = html;
    var at = focused();
    var open = {};
    var scrolled = {};
    var top = window.scrollY;
    each("details[id]", function (one) { open[one.id] = one.open; });
    each(".audit-scroll[id]", function (one) { scrolled[one.id] = one.scrollLeft; });
    part.innerHTML = html;
    each("details[id]", function (one) { if (one.id in open) { one.open = open[one.id]; } });
    each(".audit-scroll[id]", function (one) { one.scrollLeft = scrolled[one.id] || 0; });
    if (at) {
      focus(at);
    }
    window.scrollTo(window.scrollX, top);
  }

  function failed(why) {
    say("stale: " + why + ", this is as of " + clock(fresh), true);
  }

  async function once() {
    var controller = new AbortController();
    var limit = window.setTimeout(function () { controller.abort(); }, PATIENCE);
    try {
      var answer = await fetch(address(), { cache: "no-store", signal: controller.signal, redirect: "error" });
      var html = await answer.text();
      if (stopped()) {
        return;
      }
      if (answer.ok) {
        replace(html);
        fresh = new Date();
        say("live", false);
      } else {
        failed(answer.status === 503 ? "the memory cannot be read" : "status " + answer.status);
      }
    } catch (error) {
      if (!stopped()) {
        failed("no answer");
      }
    } finally {
      window.clearTimeout(limit);
    }
  }

  function stopped() {
    return paused || document.hidden;
  }

  // A reading that was under way when somebody paused or came back must not start a second round.
  function plan(wait) {
    window.clearTimeout(timer);
    round += 1;
    if (stopped()) {
      say(paused ? "paused" : "waits while hidden", false);
      return;
    }
    var own = round;
    timer = window.setTimeout(async function () {
      var began = performance.now();
      await once();
      if (own === round) {
        plan(Math.max(EVERY, REST * (performance.now() - began)));
      }
    }, wait);
  }

  pause.hidden = false;
  pause.addEventListener("click", function () {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    plan(0);
  });
  document.addEventListener("visibilitychange", function () { plan(0); });
  plan(EVERY);
})();
