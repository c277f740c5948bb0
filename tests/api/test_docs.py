"""The documentation pages work without internet access, in a real browser too."""

import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest
from harness.api import Api
from harness.server import Server

CHROMIUM = shutil.which("chromium")
PAGES = ("/docs", "/redoc")
REFERENCE = re.compile(r"""(?:(?:src|href)\s*=\s*|url\s*[:(]\s*|spec-url\s*=\s*)["']([^"']+)["']""")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_refers_only_to_what_this_service_serves(api: Api, server: Server, path: str) -> None:
    page = api.client.get(path)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    references = REFERENCE.findall(page.text)
    assert "/openapi.json" in references
    assert any(reference.endswith(".js") for reference in references)
    for reference in references:
        url = urljoin(server.url + path, reference)
        assert urlsplit(url).netloc == urlsplit(server.url).netloc, reference
        served = api.client.get(url)
        assert served.status_code == 200, reference
        assert len(served.content) > 500
    addresses = re.findall(r"(?:https?:)?//[\w.-]+", page.text)
    assert addresses == [], "no other host is named at all"


@pytest.mark.skipif(CHROMIUM is None, reason="needs the program `chromium`")
@pytest.mark.parametrize("path", PAGES)
def test_a_browser_without_internet_shows_every_operation(server: Server, tmp_path: Path, path: str) -> None:
    assert CHROMIUM
    shown = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--virtual-time-budget=20000", "--dump-dom", server.url + path,
        ],
        capture_output=True, text=True, timeout=90, check=True,
    ).stdout  # fmt: skip
    for summary in ("Create or reconfigure a queue", "Claim messages", "Beat for leases", "Metrics, for Prometheus"):
        assert summary in shown
    assert "Failed to load" not in shown
    assert "Something went wrong" not in shown
