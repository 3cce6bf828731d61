"""Make the pictures of the page in docs/pictures: real answers of the embedded model, real speeds.

    python tools/page_pictures.py [FOLDER]

Needs the packages of the extra "dev" and the program chromium. Nothing else should keep the machine
busy: the pictures show how fast the answers came, and browser and model share the cores already.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers.browser import finished, send  # noqa: E402
from helpers.command import Process  # noqa: E402

FOLDER = ROOT / "docs" / "pictures"
MOST = 200_000  # bytes of a picture
# Name -> width, height, dark
PICTURES = {
    "page-light": (1280, 800, False),
    "page-dark": (1280, 800, True),
    "page-phone": (390, 844, False),
}
CODE = '''class Reader:
    """Read lines of a file, one after the other."""

    def __init__(self, path, encoding="utf-8"):
        self.path = path
        self.count = 0
        self.file = open(path, encoding=encoding)

    def next_line(self):
        """Return the next line, or None at the end."""
        line = self.file.readline()
        if not line:
            return None
        self.count += 1
        return line.rstrip("\\n")

    def skip(self, count):
        """Skip some lines and return how many there were."""
        skipped = 0
        while skipped < count and self.next_line() is not None:
            skipped += 1
        return skipped

    def read_all(self):
        """Return all lines that are left."""
        lines = []
        line = self.next_line()
        while line is not None:
            lines.append(line)
            line = self.next_line()
        return lines

    def close(self):
        """Close the file."""
        self.file.close()
'''
TITLES = ("Show one function", "Rename a parameter")


def chat(page: Any) -> None:
    """Have some chats; where the graph is in view the last answer is made both ways."""
    for title in TITLES:
        page.get_by_role("button", name=title).click()
        page.keyboard.press("Enter")
        finished(page)
        page.keyboard.press("Control+Shift+O")
    send(page, f"Repeat this code:\n\n```python\n{CODE}```")
    finished(page)
    if page.locator("#panel").is_visible():
        page.get_by_role("button", name="Compare: ").last.click()
        page.locator(".facts.other", has_text="times the speed").wait_for()
    page.wait_for_timeout(2500)  # for the live figures, and for marks of buttons to go


def main(folder: Path) -> None:
    """Make all pictures."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (width, height, dark) in PICTURES.items():
            with Process("--calibrate", "2") as server:  # it has learned nothing yet
                page = browser.new_page(
                    viewport={"width": width, "height": height},
                    color_scheme="dark" if dark else "light",
                )
                page.goto(server.url())
                chat(page)
                path = folder / f"{name}.png"
                page.screenshot(path=path)
                page.close()
            size = path.stat().st_size
            print(f"{path.name}: {size} bytes")
            if size > MOST:
                sys.exit(f"{path} is larger than {MOST} bytes")
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="default: %(default)s")
    main(parser.parse_args().folder)
