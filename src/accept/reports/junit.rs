//! `junit.xml`: a suite per section, a case per metric, for the test reports of CI systems.

use crate::accept::facts::AcceptanceFacts;
use crate::accept::verdict::metric::{Metric, Status, show};
use crate::accept::verdict::{Ending, SectionResult};
use quick_junit::{NonSuccessKind, Report as Suites, SerializeError, TestCase, TestCaseStatus, TestSuite};
use std::time::Duration;

/// The file.
pub fn suites(facts: &AcceptanceFacts) -> Result<String, SerializeError> {
    let mut suites = Suites::new("zero3 accept");
    suites.set_time(Duration::from_secs_f64(facts.seconds));
    suites.add_test_suites(facts.sections.iter().map(suite));
    suites.to_string()
}

fn suite(result: &SectionResult) -> TestSuite {
    let mut suite = TestSuite::new(result.section.name());
    suite.set_time(Duration::from_secs_f64(result.took_s));
    let ended = match result.ending {
        Ending::Completed => TestCaseStatus::success(),
        Ending::Failed | Ending::UnderWay => failure(&result.reason, NonSuccessKind::Error),
        Ending::Skipped | Ending::NotAsked => skipped(&result.reason),
    };
    let mut completes = TestCase::new(format!("{}.completes", result.section), ended);
    completes.set_time(Duration::from_secs_f64(result.took_s));
    suite.add_test_case(completes);
    suite.add_test_cases(result.metrics.iter().map(case));
    // Jenkins and GitLab read the number of skipped cases, and group cases by class.
    let is_skipped = |case: &&TestCase| matches!(case.status, TestCaseStatus::Skipped { .. });
    let n_skipped = suite.test_cases.iter().filter(is_skipped).count();
    suite.extra.insert("skipped".into(), n_skipped.to_string().into());
    suite
        .test_cases
        .iter_mut()
        .for_each(|case| _ = case.set_classname(format!("zero3.accept.{}", result.section)));
    suite
}

fn case(metric: &Metric) -> TestCase {
    let status = match metric.status {
        Status::Pass | Status::Info => TestCaseStatus::success(),
        Status::Fail => failure(&metric.reason, NonSuccessKind::Failure),
        Status::Skipped => skipped(&metric.reason),
    };
    let mut case = TestCase::new(&metric.name, status);
    if let Some(value) = metric.value {
        case.set_system_out(format!("{} {} {}", show(value), metric.unit, metric.reason).trim_end());
    }
    case
}

fn failure(message: &str, kind: NonSuccessKind) -> TestCaseStatus {
    let mut status = TestCaseStatus::non_success(kind);
    status.set_message(message);
    status
}

fn skipped(message: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::skipped();
    status.set_message(message);
    status
}
