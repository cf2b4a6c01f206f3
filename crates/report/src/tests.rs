//! Tests of pages for generated runs: every section exists, names are escaped, and the file stays
//! small. `ci/pages` checks the pages in a browser.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::{DeviceMemory, Run, State, StepTimes, Summary, report};

const SECTIONS: [&str; 10] = [
    "overview",
    "curves",
    "time",
    "steps",
    "memory",
    "model",
    "classes",
    "images",
    "configuration",
    "environment",
];
const SCRIPT: &str = "</style><script>document.title='ran'</script>";
/// The size limit of a page, in bytes.
const LIMIT: usize = 500_000;

/// Writes the folder of a run with all possible content.
fn folder(root: &Path, name: &str, log_points: u64, metrics: usize) -> PathBuf {
    let folder = root.join(name);
    std::fs::create_dir_all(folder.join("media/first_batch")).unwrap();
    let mut lines = String::new();
    for i in 1..=log_points {
        let step = i * 10;
        let x = i as f64 / log_points as f64;
        let loss = 2.3 * (-3.0 * x).exp() + 0.05 * (i as f64 * 1.7).sin().abs();
        let _ = write!(
            lines,
            "{{\"epoch\":0,\"step\":{step},\"time\":1.5,\"metrics\":{{\"train_loss\":{loss},\"lr\":{}",
            1e-3 * (1.0 - x)
        );
        for metric in 0..metrics {
            let _ =
                write!(lines, ",\"norm/{metric}\":{}", (i * 7919 + metric as u64 * 104_729) % 1000);
        }
        lines.push_str("}}\n");
    }
    let last = 10 * log_points;
    let _ = writeln!(
        lines,
        "{{\"epoch\":0,\"step\":{last},\"metrics\":{{\"val_loss\":0.4,\"{SCRIPT}\":\"NaN\",\"val_bad_loss\":null}},\
         \"arrays\":{{\"confusion\":[[90,8,2],[5,95,0],[1,9,90]],\"recall\":[0.9,0.95,\"NaN\"]}}}}"
    );
    lines.push_str("{\"epoch\":0,\"step\":");
    std::fs::write(folder.join("metrics.jsonl"), lines).unwrap();
    let goodput = "{\"runs\":[{\"seconds\":{\"start\":2,\"compile\":10,\"data\":30,\"steps\":150,\"lost\":8}},{\"seconds\":{\"steps\":50}}]}";
    std::fs::write(folder.join("goodput.json"), goodput).unwrap();
    let environment = format!(
        "{{\"fulmen\":\"0.1.0\",\"command\":\"train {SCRIPT}\",\"variables\":{{\"RUST_LOG\":\"info\"}},\"hosts\":[\"a\"]}}"
    );
    std::fs::write(folder.join("environment.json"), environment).unwrap();
    let config = format!(
        "# {SCRIPT}\nmax_epochs = 3  # --max-epochs\nlearning_rate = 0.1\n\n[mesh]\ndata = 8\n"
    );
    std::fs::write(folder.join("config.toml"), config).unwrap();
    let mut step_times = StepTimes::default();
    (0..5000u64)
        .for_each(|step| step_times.push(step, 0.01 + 0.002 * ((step % 97) as f64 / 97.0).powi(3)));
    step_times.push(1234, 1.5);
    let row = [
        "encoder.layers".to_owned(),
        SCRIPT.to_owned(),
        "48".to_owned(),
        "weight f32[16, 2]".to_owned(),
    ];
    let summary = Summary {
        state: State::Failed,
        reason: Some(format!("the loss was NaN in step 12 {SCRIPT}\n  at src/main.rs:3")),
        epochs: 1,
        global_step: last,
        step_time_p50: 0.01,
        samples_per_second: 3200.0,
        loader: Some("input-bound: 33 % of the step time is spent waiting for data; decoding is the slow stage".into()),
        compilations: vec![("training step".into(), Some(9.5)), ("validation step".into(), None)],
        flops_per_second: Some(81e12),
        peak_flops: Some(197e12),
        step_times,
        memory: vec![DeviceMemory {
            device: "TPU v5 lite 0".into(),
            state: 6 << 30,
            temporaries: Some(3 << 30),
            peak: Some(15 << 30),
            limit: Some(16 << 30),
        }],
        host_memory: Some(1 << 30),
        model: vec![row; 150],
        model_total: "48 parameters; 192 bytes".into(),
        lines: vec![(format!("src/main.rs:7 {SCRIPT}"), 2.5e9, 4e6)],
        advice: vec![format!("1 of 2 products take f32 {SCRIPT}")],
        setting: vec![("platform".into(), "tpu".into())],
        ..Summary::default()
    };
    std::fs::write(folder.join(crate::SUMMARY), serde_json::to_vec(&summary).unwrap()).unwrap();
    // A PNG of one gray pixel.
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\0\0\0\0:~\x9bU\0\0\0\nIDATx\x9cch\0\0\0\x82\0\x81w\xcdr\xb6\0\0\0\0IEND\xaeB`\x82";
    std::fs::write(folder.join("media/first_batch/0.png"), png).unwrap();
    folder
}

fn has_sections(page: &str, sections: &[&str]) {
    for section in sections {
        assert!(page.contains(&format!("<section id=\"{section}\">")), "{section}");
    }
    assert!(
        page.len() < LIMIT && !page.contains("<script") && !page.contains("http"),
        "{}",
        page.len()
    );
}

#[test]
fn the_page_of_a_failed_run_has_all_sections() {
    let root = tempfile::tempdir().unwrap();
    let run = Run::open(folder(root.path(), "<script>1<!--", 300, 2)).unwrap();
    assert_eq!((run.log_points, run.bad_lines), (301, 0));
    let page = report(&[run]);
    has_sections(&page, &SECTIONS);
    let expected = [
        "Failed: the loss was NaN in step 12 &lt;/style&gt;&lt;script&gt;",
        "val_loss is 0.4 at step 3000, its minimum",
        "val_bad_loss was NaN or infinite at 1 of the log points",
        "input-bound: 33 %",
        "3200 samples a second; 41 % of the chip&#39;s peak",
        "2 compiles, 9.50 s",
        "80 % of 4 min 10 s was spent on steps",
        "TPU v5 lite 0: 94 % of its memory was in use",
        "The median is 10.0 ms",
        "150.0</td>",
        "over 2 starts",
        "--share:0.900",
        "variables.RUST_LOG",
        "data:image/png;base64,iVBOR",
        "50 more parts left out",
        "max_epochs = 3  # --max-epochs",
        "src/main.rs:7 &lt;/style&gt;",
        "2.50 GFLOP",
        "1 of 2 products take f32 &lt;/style&gt;",
    ];
    for text in expected {
        assert!(page.contains(text), "{text}\n{page}");
    }
}

#[test]
fn the_page_of_an_empty_folder_names_missing_files() {
    let root = tempfile::tempdir().unwrap();
    let page = report(&[Run::open(root.path()).unwrap()]);
    has_sections(&page, &SECTIONS);
    assert!(page.contains("metrics.csv are missing") && page.contains("no summary.json"), "{page}");
    let error = Run::open(root.path().join("version_9")).unwrap_err();
    assert!(error.to_string().contains("version_9: no such folder"), "{error}");
    std::fs::write(root.path().join("goodput.json"), "{").unwrap();
    assert!(Run::open(root.path()).unwrap_err().to_string().contains("goodput.json: "));
}

#[test]
fn a_run_with_many_metrics_and_log_points_has_a_small_page() {
    let root = tempfile::tempdir().unwrap();
    let folder = folder(root.path(), "long", 600, 100);
    let run = Run::open(&folder).unwrap();
    let page = report(std::slice::from_ref(&run));
    has_sections(&page, &SECTIONS);
    assert!(page.contains(" more curves."));
    let runs: Vec<Run> = std::iter::repeat_n(run, 14).collect();
    has_sections(&report(&runs), &["overview", "differences", "curves", "time", "steps", "memory"]);
}

#[test]
fn appended_lines_are_read_and_a_partial_line_waits() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("metrics.jsonl");
    let line = |step: u64| format!("{{\"step\":{step},\"metrics\":{{\"loss\":{step}}}}}\n");
    std::fs::write(&path, line(1) + &line(2)[..9]).unwrap();
    let mut run = Run::open(root.path()).unwrap();
    assert_eq!(run.curves()["loss"].last(), Some((1, 1.0)));
    std::fs::write(&path, line(1) + &line(2) + "garbage\n\n" + &line(3)).unwrap();
    run.refresh().unwrap();
    assert_eq!(
        (run.curves()["loss"].last(), run.log_points, run.bad_lines),
        (Some((3, 3.0)), 3, 1)
    );
    // The file is replaced.
    std::fs::write(&path, line(7)).unwrap();
    run.refresh().unwrap();
    assert_eq!((run.curves()["loss"].points(), run.bad_lines), (vec![(7.0, 7.0)], 0));
}

#[test]
fn without_metrics_jsonl_the_csv_is_read() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(
        root.path().join("metrics.csv"),
        "epoch,step,train_loss,\"a,b\"\n0,5,2.5,\n0,7,NaN,1\n0,x,1,1\n",
    )
    .unwrap();
    let run = Run::open(root.path()).unwrap();
    let points = |name: &str| run.curves()[name].points();
    assert_eq!(
        (points("train_loss"), points("a,b"), run.bad_lines),
        (vec![(5.0, 2.5)], vec![(7.0, 1.0)], 1)
    );
}

#[test]
fn several_runs_are_distinguished() {
    let root = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder(root.path(), name, 50, 1));
    std::fs::write(
        second.join("config.toml"),
        "max_epochs = 5 # file\nlearning_rate = 0.1\n[mesh]\ndata = 8\n",
    )
    .unwrap();
    let page = report(&[Run::open(first).unwrap(), Run::open(second).unwrap()]);
    has_sections(&page, &["overview", "differences", "curves", "time", "steps", "memory"]);
    let differences =
        page.split("id=\"differences\"").nth(1).unwrap().split("</section>").next().unwrap();
    assert!(
        differences.contains("max_epochs") && !differences.contains("learning_rate"),
        "{differences}"
    );
    assert!(
        !differences.contains("mesh.data") && !differences.contains("--max-epochs"),
        "{differences}"
    );
    let loss = page.split("<b>train_loss</b>").nth(1).unwrap().split("</figure>").next().unwrap();
    assert!(
        loss.contains("line c0") && loss.contains("line c1") && loss.contains("second"),
        "{loss}"
    );
}

/// Writes the generated pages that `ci/pages` shows to a browser, in addition to those of real
/// runs. Takes about 20 s, mostly to write and read 10⁶ lines:
/// `FULMEN_TEST_PAGES=folder cargo test -p fulmen-report made_pages -- --ignored`.
#[test]
#[ignore = "writes pages for ci/pages, which shows them to Chromium"]
fn made_pages() {
    let root = tempfile::tempdir().unwrap();
    let pages = PathBuf::from(
        std::env::var_os("FULMEN_TEST_PAGES")
            .expect("FULMEN_TEST_PAGES is the folder for the pages"),
    );
    let made = [
        ("hostile", folder(root.path(), "<script>1<!--", 300, 3)),
        ("million", folder(root.path(), "million", 1_000_000, 0)),
    ];
    for (name, folder) in made {
        let run = Run::open(folder).unwrap();
        let page = report(&[run]);
        has_sections(&page, &SECTIONS);
        std::fs::write(pages.join(name).with_extension("html"), page).unwrap();
    }
}
