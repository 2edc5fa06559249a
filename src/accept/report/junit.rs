//! `junit.xml`: a suite per section, a case per metric, for whatever CI draws tables from.

use super::Report;
use crate::accept::metric::{Metric, Status, show};
use crate::accept::verdict::{Ending, Section};
use quick_junit::{NonSuccessKind, Report as Suites, SerializeError, TestCase, TestCaseStatus, TestSuite};
use std::time::Duration;

/// The whole file.
pub fn suites(report: &Report) -> Result<String, SerializeError> {
    let mut suites = Suites::new("zero3 accept");
    suites.set_time(Duration::from_secs_f64(report.seconds));
    suites.add_test_suites(report.sections.iter().map(suite));
    suites.to_string()
}

fn suite(section: &Section) -> TestSuite {
    let mut suite = TestSuite::new(&section.name);
    suite.set_time(Duration::from_secs_f64(section.took_s));
    let ended = match section.ending {
        Ending::Completed => TestCaseStatus::success(),
        Ending::Failed | Ending::UnderWay => failure(&section.reason, NonSuccessKind::Error),
        Ending::Skipped | Ending::NotAsked => skipped(&section.reason),
    };
    let mut completes = TestCase::new(format!("{}.completes", section.name), ended);
    completes.set_time(Duration::from_secs_f64(section.took_s));
    suite.add_test_case(completes);
    suite.add_test_cases(section.metrics.iter().map(case));
    // The schema of Jenkins and GitLab counts what was skipped, and they group cases by their class.
    let is_skipped = |case: &&TestCase| matches!(case.status, TestCaseStatus::Skipped { .. });
    let n_skipped = suite.test_cases.iter().filter(is_skipped).count();
    suite.extra.insert("skipped".into(), n_skipped.to_string().into());
    suite.test_cases.iter_mut().for_each(|case| _ = case.set_classname(format!("zero3.accept.{}", section.name)));
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
