"""The TAP loop of the Python tests of this folder."""
import traceback


def run(cases):
    """cases: functions whose docstrings name them. The exit status: 1 where one has failed."""
    failed = 0
    print(f"1..{len(cases)}")
    for i, fn in enumerate(cases, 1):
        try:
            fn()
            print(f"ok {i} - {fn.__doc__}")
        except AssertionError as e:
            failed = 1
            print(f"not ok {i} - {fn.__doc__}\n# line {traceback.extract_tb(e.__traceback__)[-1].lineno}: {e}")
    return failed
