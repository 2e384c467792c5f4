"""Every preset to configure with has one to build with, and one to test with where it builds tests."""
import json
import pathlib
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent
CMAKE = sys.argv.pop() if len(sys.argv) > 1 else "cmake"


class Presets(unittest.TestCase):
    def setUp(self):
        self.presets = json.loads((SOURCE / "CMakePresets.json").read_text())

    def named(self, kind):
        return {preset["name"]: preset for preset in self.presets[kind] if not preset.get("hidden")}

    def test_each_can_be_built(self):
        self.assertEqual(set(self.named("buildPresets")), set(self.named("configurePresets")))

    def test_each_that_builds_tests_can_be_tested(self):
        with_tests = {
            name
            for name, preset in self.named("configurePresets").items()
            if preset["cacheVariables"].get("ATTNFUZZ_TESTS") != "OFF"
        }
        self.assertEqual(set(self.named("testPresets")), with_tests)

    def test_cmake_reads_them(self):
        listed = subprocess.run([CMAKE, "--list-presets=all"], cwd=SOURCE, capture_output=True, text=True, check=False)
        self.assertEqual(listed.returncode, 0, listed.stderr)
        for kind in ("build", "test"):
            self.assertIn(f"Available {kind} presets:", listed.stdout)


if __name__ == "__main__":
    unittest.main()
