//! Report files: each has every metric and the verdict, and reads back.

use super::*;
use crate::accept::facts::{
    CollectiveFacts, DeviceRates, JobFacts, LinkTimes, RankFacts, ScalingPoint, StorageRates,
};
use crate::accept::verdict::metric::Metric;
use crate::accept::verdict::{Ending, SectionResult};
use crate::config::acceptance::Section;
use crate::harness::{CollectiveOp, CollectiveTime, TrainedRun};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

fn facts() -> AcceptanceFacts {
    let metrics = vec![
        Metric::info("training.tokens_per_s", 1.0 / 3.0, "tokens/s").judged(
            &"1 -5%".parse().unwrap(),
            None,
            None,
        ),
        Metric::skipped("training.mfu", "run.peak_gflops is not set, \"so\" <there>"),
        Metric::info("training.step_p50", f64::NAN, "ms"),
    ];
    let training = SectionResult {
        section: Section::Training,
        ending: Ending::Completed,
        reason: String::new(),
        began_s: 1.0,
        took_s: 2.0,
        metrics,
    };
    let scaling = SectionResult {
        section: Section::Scaling,
        ending: Ending::Skipped,
        reason: "time".into(),
        began_s: 3.0,
        took_s: 0.0,
        metrics: vec![],
    };
    let point = |bytes: u64| CollectiveTime {
        op: CollectiveOp::AllGather,
        scope: "all".into(),
        n_ranks: 2,
        bytes,
        mean_us: 1.0,
        p99_us: 2.0,
        algbw: 1.0,
        busbw: 0.5,
        n_wrong: 0,
        wrong_ranks: vec![1],
    };
    let link = LinkTimes { a: 0, b: 1, latency_us: 1.0, gb_per_s: 1.0 };
    let run = TrainedRun {
        losses: vec![2.0, 1.0],
        grad_norms: vec![1.0, 1.0],
        exposed: vec![0.1, 0.2],
        step_ms: vec![5.0, 6.0],
        compute_ms: vec![vec![4.0, 5.0], vec![4.5, 4.5]],
        ..TrainedRun::default()
    };
    let mut facts = AcceptanceFacts::new(JobFacts {
        started_unix: 1.7e9,
        n_ranks: 2,
        backend: "cpu",
        has_baseline: false,
        versions: BTreeMap::from([("mpi".into(), "Open MPI".into())]),
        deck: "[run]\n".into(),
    });
    facts.ranks = vec![RankFacts::from([("host".into(), "n<1>".into())]); 2];
    facts.sections = vec![training, scaling];
    facts.device =
        vec![DeviceRates { rank: 0, gemm_f32_gflops: 1.0, gemm_bf16_gflops: 2.0, memory_gb_per_s: 3.0 }];
    facts.collectives = CollectiveFacts { points: vec![point(8), point(64)], links: vec![link] };
    facts.storage = vec![StorageRates { rank: 0, write_gb_per_s: 1.0, read_gb_per_s: 2.0 }];
    facts.scaling = [1, 2]
        .map(|n_ranks| ScalingPoint {
            mode: "strong",
            n_ranks,
            tokens_per_s: n_ranks as f64,
            efficiency: 1.0,
        })
        .into();
    facts.reference_run = Some(run);
    facts.judge(3.0);
    facts
}

#[test]
fn every_file_is_written_and_holds_every_metric() {
    let dir = tempfile::tempdir().unwrap();
    write(&facts(), dir.path()).unwrap();
    for name in ["report.json", "report.csv", "junit.xml", "mllog.txt", "report.html"] {
        let text = std::fs::read_to_string(dir.path().join(name)).unwrap();
        for metric in ["training.tokens_per_s", "training.mfu", "training.step_p50"] {
            assert!(text.contains(metric), "{metric} in {name}");
        }
    }
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("report.json")).unwrap()).unwrap();
    assert_eq!((&json["schema"], &json["schema_version"]), (&"zero3.acceptance".into(), &1.into()));
    assert_eq!(json["verdict"]["valid"], false);
    let first = &json["sections"][0]["metrics"][0];
    assert_eq!(
        (first["value"].as_f64(), &first["status"], &first["source"]),
        (Some(1.0 / 3.0), &"FAIL".into(), &"deck".into())
    );
}

/// Every field of a report with its type: `sections[].name` is `text`.
fn fields(value: &Value, path: &str, found: &mut BTreeMap<String, BTreeSet<&'static str>>) {
    let kind = match value {
        Value::Object(object) => {
            // Objects whose names are data have one line.
            let is_data = ["versions", "ranks[]"].contains(&path);
            for (name, value) in object {
                let name = if is_data { "*" } else { name };
                let path = if path.is_empty() { name.into() } else { format!("{path}.{name}") };
                fields(value, &path, found);
            }
            return;
        }
        Value::Array(list) => {
            return list.iter().for_each(|value| fields(value, &format!("{path}[]"), found));
        }
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "text",
    };
    found.entry(path.into()).or_default().insert(kind);
}

#[test]
fn docs_acceptance_md_has_every_field_of_the_report_with_its_type() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/acceptance.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page.split("### report.json").nth(1).unwrap().split("\n## ").next().unwrap().lines();
    let mut documented = BTreeMap::new();
    for row in rows.filter(|row| row.starts_with("| `")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let paths = cells[0].split('`').skip(1).step_by(2);
        documented
            .extend(paths.map(|path| (path.to_string(), cells[1].split(" or ").collect::<BTreeSet<_>>())));
    }
    let mut written = BTreeMap::new();
    fields(&serde_json::to_value(facts()).unwrap(), "", &mut written);
    assert_eq!(written.keys().collect::<Vec<_>>(), documented.keys().collect::<Vec<_>>());
    for (path, kinds) in &written {
        assert!(
            kinds.iter().all(|kind| documented[path].contains(kind)),
            "{path}: {kinds:?}, {:?}",
            documented[path]
        );
    }
}

#[test]
fn the_table_reads_back_to_the_same_bits() {
    let text = csv::table(&facts()).unwrap();
    let mut reader = ::csv::Reader::from_reader(text.as_bytes());
    let rows: Vec<::csv::StringRecord> = reader.records().map(|row| row.unwrap()).collect();
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0][1].parse::<f64>().unwrap().to_bits(), (1.0_f64 / 3.0).to_bits());
    assert_eq!((&rows[1][1], &rows[1][3]), ("", "SKIPPED"));
    assert!(rows[1][8].contains("\"so\" <there>"));
}

#[test]
fn junit_counts_failures_and_skips() {
    let xml = junit::suites(&facts()).unwrap();
    assert!(xml.contains("failures=\"1\""), "{xml}");
    assert!(
        xml.contains("tests=\"4\" disabled=\"1\" errors=\"0\" failures=\"1\"")
            && xml.contains("skipped=\"1\""),
        "{xml}"
    );
    assert_eq!(xml.matches("<testcase ").count(), xml.matches(" classname=\"zero3.accept.").count(), "{xml}");
    assert!(xml.contains("&lt;there&gt;") && !xml.contains("<there>"), "{xml}");
}

/// What mlperf_logging's parser asks of a line (mlp_parser/parser.py): the token, JSON, the six fields and
/// their types; and of a file: intervals that begin and end.
#[test]
fn every_mllog_line_is_one_that_the_parser_reads() {
    let text = mllog::lines(&facts());
    let mut open = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let json: serde_json::Value =
            serde_json::from_str(line.strip_prefix(":::MLLOG ").expect("the token")).unwrap();
        let fields: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(fields.len(), 6, "{line}");
        assert!(
            json["namespace"].is_string() && json["time_ms"].is_u64() && json["key"].is_string(),
            "{line}"
        );
        assert!(json.get("value").is_some());
        assert_eq!(json["metadata"]["lineno"].as_u64(), Some(i as u64 + 1));
        match json["event_type"].as_str().unwrap() {
            "INTERVAL_START" => open.push(json["key"].as_str().unwrap().replace("_start", "")),
            "INTERVAL_END" => {
                assert_eq!(open.pop(), Some(json["key"].as_str().unwrap().replace("_stop", "")), "{line}")
            }
            "POINT_IN_TIME" => {}
            other => panic!("{other}"),
        }
    }
    assert!(open.is_empty());
    assert!(text.contains("train_loss"));
}

#[test]
fn the_page_has_four_plots_and_escapes_what_ranks_say() {
    let page = html::page(&facts()).unwrap();
    assert_eq!(page.matches("<figure ").count(), 4);
    let outside = page.replace("http://www.w3.org/2000/svg", "");
    for word in ["http:", "https:", "<script", "src="] {
        assert!(!outside.contains(word), "{word}");
    }
    // Figures of what cannot be drawn: the tables may say so.
    let figures = &page[page.find("<figure ").unwrap()..page.rfind("</figure>").unwrap()];
    assert!(!figures.contains("NaN") && !figures.contains(">inf"), "{figures}");
    assert!(page.contains("n&lt;1&gt;") && !page.contains("n<1>"));
    assert!(page.contains("2 ranks on 1 node, ") && page.contains(" from 2023-11-14T22:13:20Z"));
    assert!(page.contains(">deck 1 -5%<"), "what a figure is held against has its tolerances");
}
