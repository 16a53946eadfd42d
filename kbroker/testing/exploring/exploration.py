"""The exploration of a test without pytest: `kbroker.testing.explore`."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing

from kbroker.testing.broker import NO_SETTINGS, Broker
from kbroker.testing.exploring.faults import Case, Plan, plan_of
from kbroker.testing.exploring.injection import Application, FirstRun, Injection
from kbroker.testing.exploring.report import FAILED, NOT_REACHED, PASSED, ExplorationFailed, Outcome, Report
from kbroker.testing.exploring.steps import ReachedStep, reached_steps
from kbroker.testing.report import sections_of

Run = Callable[..., object]


def explore(run: Run, *, kill: str | Iterable[str] = (), error: str | Iterable[str] = (),
            select: Mapping[str, str | int] | None = None, steps: int | None = None, seed: int = 1,
            only: str | Iterable[str] = (), settings: Mapping[str, str] = NO_SETTINGS) -> Report:
    """Run a test once, and then once more for each step that its application reached, with a fault at this step.

    `run(broker)` is the test. It gets a fresh broker each time, starts its application, and asserts what must hold in
    the end. With `kill='application'`, it is called as `run(broker, application)`, and calls
    `application.restart_with(restart)`.

    * `kill`: one or more of 'broker' (killed at the step, and started again), 'reply' (the answer is lost after its
      effect), 'request' (the connection is cut before), 'application' (`restart` is called while the broker is held).
    * `error`: one or more errors of Kafka with which requests are refused, such as 'NOT_COORDINATOR'.
    * `select`: the steps to try, by `point` and names, such as {'api': 'EndTxn'}; all steps by default.
    * `steps`: how many of the steps to try. `seed` decides which.
    * `only`: the names of the runs to repeat, such as 'step-17-broker'.
    * `settings`: settings of each broker.

    Return the report if all runs passed; a step that was not reached again counts as such. Raise ExplorationFailed with
    the report if a run failed, and ValueError for a wrong argument or a test that reaches no step. An error of the
    first run, which has no fault, is raised as it is.
    """
    plan = plan_of(kill, error, select, steps, seed)
    reached = _first_run(run, plan, settings)
    outcomes: list[Outcome] = []
    for case in _cases(plan, reached, only):
        outcomes.append(_run_with(run, case, plan, settings, explains=not any(
            outcome.verdict == FAILED for outcome in outcomes)))
    report = Report(len(reached), outcomes)
    if report.failed:
        raise ExplorationFailed(report)
    return report


def _first_run(run: Run, plan: Plan, settings: Mapping[str, str]) -> list[ReachedStep]:
    with Broker(settings=settings) as broker:
        first = FirstRun(broker)
        _call(run, broker, Application(), plan)
        return reached_steps(first.steps())


def _call(run: Run, broker: Broker, application: Application, plan: Plan) -> None:
    if plan.kills_application:
        run(broker, application)
    else:
        run(broker)


def _cases(plan: Plan, reached: Collection[ReachedStep], only: str | Iterable[str]) -> list[Case]:
    if not only:
        return plan.cases(reached)
    cases = {case.name: case for case in plan.all_cases(reached)}
    names = [only] if isinstance(only, str) else list(only)
    for name in names:
        if name not in cases:
            raise ValueError(f'only: found {name!r}, expected names of runs from {next(iter(cases))} to '
                             f'{list(cases)[-1]}')
    return [cases[name] for name in names]


def _run_with(run: Run, case: Case, plan: Plan, settings: Mapping[str, str], explains: bool) -> Outcome:
    """Run the test with a fault. If it fails and `explains`, the outcome has the pictures of the partitions."""
    # Without the check of a `with` block: a fault of the exploration may prevent that a hold of the test is reached.
    with closing(Broker(settings=settings)) as broker:
        application = Application()
        injection = Injection(broker, case, application)
        try:
            try:
                _call(run, broker, application, plan)
            finally:
                injection.close()
        except Exception as error:
            reason = f'{type(error).__name__}: {error}'.partition('\n')[0]
            sections = sections_of(broker.data_dir) if explains else []
            return Outcome(case, FAILED, reason, '\n\n'.join(f'{title}\n{text}' for title, text in sections))
    return Outcome(case, PASSED if injection.has_fired else NOT_REACHED)
