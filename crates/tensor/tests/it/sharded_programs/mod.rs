//! Random programs give the same values and gradients on eight devices as on one, however their
//! values are split.
//!
//! To search for faults, run the searches of large and of small programs with other seeds:
//!
//! ```text
//! FULMEN_TEST_SEEDS=1000..3000 cargo test -p fulmen-tensor --test it searched_ -- --ignored --nocapture
//! ```

mod faults;
mod generate;
mod minimize;
mod operations;
mod process;
mod program;
mod run;

use std::ops::Range;

use minimize::minimize;
use process::ComparingProcess;
use run::{Outcome, text};

/// The seeds in `FULMEN_TEST_SEEDS`, such as `1000..3000`.
fn seeds() -> Range<u64> {
    let text = std::env::var("FULMEN_TEST_SEEDS").unwrap_or_else(|_| "1000..1100".into());
    let (first, end) = text.split_once("..").unwrap();
    first.parse().unwrap()..end.parse().unwrap()
}

/// Compares this many small programs on this mesh. Ten compile as one.
fn small_programs_compute_the_same(mesh: &[usize], count: u64) {
    let mut wrong = Vec::new();
    let mut unusable = 0;
    for first in (0..count).step_by(10) {
        let programs: Vec<_> =
            (first..first + 10).map(|seed| generate::small_program(seed, mesh)).collect();
        for (program, outcome) in programs.iter().zip(run::compare_all(&programs)) {
            unusable += usize::from(matches!(outcome, Outcome::Unusable(_)));
            if outcome.is_wrong() {
                wrong.push(format!("{program}: {:.300}", format!("{outcome:?}")));
            }
        }
        println!("{} programs compared, {} wrong, {unusable} unusable", first + 10, wrong.len());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(unusable < 5, "{unusable} programs cannot be compared");
}

#[test]
fn programs_on_eight_devices_compute_the_same() {
    small_programs_compute_the_same(&[8], 100);
}

#[test]
fn programs_on_four_by_two_devices_compute_the_same() {
    small_programs_compute_the_same(&[4, 2], 100);
}

#[test]
fn programs_on_two_by_two_by_two_devices_compute_the_same() {
    small_programs_compute_the_same(&[2, 2, 2], 100);
}

#[test]
#[ignore = "takes minutes; FULMEN_TEST_SEEDS=1000..3000 selects the programs"]
fn searched_programs_compute_the_same() {
    search(1, |seed| vec![generate::program(seed)]);
}

#[test]
#[ignore = "takes minutes; FULMEN_TEST_SEEDS=1000..3000 selects the programs"]
fn searched_small_programs_compute_the_same() {
    let meshes: [&[usize]; 3] = [&[8], &[4, 2], &[2, 2, 2]];
    search(10, |first| {
        let mesh = meshes[(first / 10 % 3) as usize];
        (first..first + 10).map(|seed| generate::small_program(seed, mesh)).collect()
    });
}

/// Compares the programs of all seeds, those of `together` seeds as one.
fn search(together: usize, programs_from: impl Fn(u64) -> Vec<program::Program>) {
    let mut process = ComparingProcess::new();
    let folder = std::env::var("FULMEN_TEST_FAULTS").ok();
    let minimizes = std::env::var_os("FULMEN_TEST_KEEP_LARGE").is_none();
    let mut same = 0;
    let mut unusable = 0;
    let mut wrong = 0;
    for first in seeds().step_by(together) {
        let programs = programs_from(first);
        let outcomes = process.compare_all(&programs);
        for ((seed, program), outcome) in (first..).zip(&programs).zip(outcomes) {
            match &outcome {
                Outcome::Same => same += 1,
                Outcome::Unusable(why) => {
                    unusable += 1;
                    println!("seed {seed} is unusable: {why:.300}");
                }
                _ => wrong += 1,
            }
            if (seed + 1).is_multiple_of(20) {
                println!(
                    "up to seed {seed}: {same} are the same, {wrong} wrong, {unusable} unusable"
                );
            }
            if !outcome.is_wrong() {
                continue;
            }
            println!(
                "seed {seed} ({} steps): {:.300}",
                program.steps.len(),
                format!("{outcome:?}")
            );
            if minimizes {
                let kind = outcome.kind().to_owned();
                let smallest = minimize(program, |p| process.compare(p).kind() == kind);
                let outcome = process.compare(&smallest);
                println!("smallest: {:.1200}\n{smallest}", format!("{outcome:?}"));
                if let Some(folder) = &folder {
                    let file = format!("{folder}/{seed}.mlir");
                    std::fs::write(file, text(&smallest)).unwrap();
                }
            }
        }
    }
    let all = same + wrong + unusable;
    println!("of {all} programs, {same} are the same, {wrong} wrong, {unusable} unusable");
    assert_eq!(wrong, 0);
}
