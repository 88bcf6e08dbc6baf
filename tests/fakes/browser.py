"""A headless Chromium: Debian's packages chromium and chromium-driver, and selenium."""

import contextlib
import shutil

import pytest
from selenium import webdriver

FLAGS = """headless no-sandbox disable-gpu disable-quic no-first-run disable-sync
disable-background-networking disable-component-update""".split()


@contextlib.contextmanager
def chromium(profile, size):
    """A browser with a window of `size`, "WIDTH,HEIGHT"; without one, the test is skipped."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (program and driver):
        pytest.skip("no chromium: apt install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"window-size={size}", f"user-data-dir={profile}"):
        options.add_argument(f"--{flag}")
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as browser:
        browser.set_page_load_timeout(60)
        yield browser
