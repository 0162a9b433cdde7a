// Pages opened from disk may not start a Worker, which the search needs: run its script in a hidden iframe instead.
class IframeWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    (document.body || document.documentElement).appendChild(this.frame);
    this.receive = (event) => {
      if (event.source !== this.frame.contentWindow) return;
      const copy = new MessageEvent("message", { data: event.data });
      this.dispatchEvent(copy);
      if (this.onmessage) this.onmessage(copy);
    };
    addEventListener("message", this.receive);
    const inside = this.frame.contentDocument;
    inside.open();
    inside.write(
      `<html><body><script>
        postMessage = (data) => parent.dispatchEvent(new MessageEvent("message", { data, source: window }));
        importScripts = (...urls) => urls.reduce((done, url) => done.then(() => new Promise((resolve) => {
          const script = document.createElement("script");
          script.src = url;
          script.onload = resolve;
          document.body.appendChild(script);
        })), Promise.resolve());
      <\/script><script src="${url}"><\/script></body></html>`,
    );
    inside.close();
    // After open(), which removes listeners.
    this.ready = new Promise((resolve) => (this.frame.contentWindow.onload = resolve));
  }
  postMessage(data) {
    this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
  }
  terminate() {
    removeEventListener("message", this.receive);
    this.frame.remove();
  }
}
if (location.protocol === "file:") window.Worker = IframeWorker;
