"""The oracles share the end-to-end tests' helpers, and break.py's reader and codecs."""
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "e2e"), str(TESTS / "fixtures" / "tools")]
