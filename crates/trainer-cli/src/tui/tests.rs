//! Tests the screen as text, and a program in a terminal.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use expect_test::expect_file;
use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::Tensor;
use fulmen_trainer::{
    Actions, Batch, Callback, FitStart, LogPoint, Options, Plan, Progress, StepContext, Strategy,
    TrainerBuilder, TrainingModule,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tempfile::TempDir;

use super::screen::{Memory, Queue, Resources, Screen};
use super::{Requests, press};
use crate::{CliApp, FitData, Result};

/// A training in its third epoch.
fn training() -> Screen {
    let mut screen = Screen::new("mnist fit".into());
    let start = Instant::now();
    screen.fit(&start_of_fit());
    for line in [
        "Training 1000 parameters in bf16-mixed, matmul precision default, on tpu (4 devices, batch 128): 10 epochs of 200 \
         steps, files in runs/version_3",
        "Compiled the training step in 2.4 s",
        "Compiled the validation step in 0.9 s",
    ] {
        screen.line(line.to_owned());
    }
    for step in 1..=500u64 {
        let progress = Progress {
            epoch: (step - 1) / 200,
            batch: (step - 1) % 200 + 1,
            batches: 200,
            global_step: step,
        };
        let seconds = 0.1 * step as f64 + 0.6 * (step as f64 / 30.0).sin();
        screen.step(progress, step, start + Duration::from_secs_f64(seconds));
        if step.is_multiple_of(10) {
            let loss = 2.0 / (1.0 + step as f64 / 60.0);
            screen.values(
                step,
                &[
                    ("train_loss".into(), loss),
                    ("train_accuracy".into(), 1.0 - loss / 2.2),
                    ("lr".into(), 3e-4),
                ],
            );
        }
        if step.is_multiple_of(200) {
            let loss = 2.2 / (1.0 + step as f64 / 60.0);
            screen.values(step, &[("val_loss".into(), loss)]);
            screen.line(format!("Epoch {}/10: val_loss={loss:.4} (20.0 s)", step / 200));
        }
    }
    screen.set_resources(Resources {
        waiting: Some(0.021),
        queues: vec![
            Queue { name: "host queue", ready: 6.4, capacity: 8 },
            Queue { name: "device queue", ready: 1.9, capacity: 2 },
        ],
        memory: vec![
            Memory { name: "device 0".into(), used: 11 << 30, limit: Some(16 << 30) },
            Memory { name: "this process".into(), used: 1400 << 20, limit: None },
        ],
    });
    screen
}

fn start_of_fit() -> FitStart {
    FitStart {
        run_dir: Some("runs/version_3".into()),
        checkpoint_dir: Some("runs/version_3/checkpoints".into()),
        plan: Plan { steps_per_epoch: 200, max_epochs: 10, total_steps: 2000 },
        epoch: 0,
        global_step: 0,
        resumes_within_epoch: true,
        platform: "tpu".into(),
        devices: vec![0, 1, 2, 3],
        processes: 1,
        learning_rate_factor: 1.0,
        mesh: "data=4".into(),
        strategy: Strategy::Ddp,
        batch_size: 128,
        tokens_per_batch: None,
        per_device_batch_size: 32,
        precision: "bf16-mixed".into(),
        matmul_precision: "default".into(),
        num_parameters: 1000,
        loss: "train_loss".into(),
        validates: true,
    }
}

fn drawn(screen: &Screen, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal
}

/// To draw the book's figure again: `UPDATE_EXPECT=1 cargo test -p fulmen-trainer-cli --features
/// tui tui::`.
#[test]
fn the_screen_is_the_books_figure() {
    let wide = drawn(&training(), 120, 30);
    expect_file!["wide.txt"].assert_eq(&wide.backend().to_string());
    expect_file!["../../../../docs/src/tui.svg"]
        .assert_eq(&fulmen_tui::svg(wide.backend().buffer()));
    expect_file!["narrow.txt"].assert_eq(&drawn(&training(), 60, 40).backend().to_string());
}

#[test]
fn a_small_terminal_shows_the_most_important_values() {
    let screen = training();
    for (width, height) in [(120, 30), (60, 40)] {
        let text = drawn(&screen, width, height).backend().to_string();
        for part in [
            "mnist fit",
            "Epoch 3/10",
            "100/200",
            "step 500",
            " s left",
            "loss, 1 of 3: train_loss=0.2143 val_loss=",
            " samples/s, ",
            "6.4 of 8",
            "2.1 %",
            "11.0 of 16.0 GiB",
            "1.4 GiB",
            "files in runs/version_3",
            "Epoch 2/10: val_loss=0.2870",
            "s save",
        ] {
            assert!(text.contains(part), "{width} × {height}, {part}: {text}");
        }
    }
    let text = drawn(&screen, 40, 30).backend().to_string();
    for part in ["step 500", "loss, 1 of 3", "samples/s", "6.4 of 8", "11.0 of 16.0 GiB", "^C end"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    for (width, height) in [(1, 1), (5, 2), (20, 6), (300, 3), (3, 80)] {
        drawn(&screen, width, height);
    }
    drawn(&Screen::new(String::new()), 80, 24);
}

#[test]
fn keys_change_the_chart_and_ask_the_trainer() {
    let mut screen = training();
    let requests = Requests::default();
    let mut after = |code| {
        let closes = press(KeyEvent::new(code, KeyModifiers::NONE), &mut screen, &requests);
        (closes, drawn(&screen, 120, 30).backend().to_string())
    };
    for (code, title) in [
        (KeyCode::Right, "accuracy, 2 of 3"),
        (KeyCode::Tab, "lr, 3 of 3"),
        (KeyCode::Right, "loss, 1 of 3"),
        (KeyCode::Left, "lr, 3 of 3"),
    ] {
        let (closes, text) = after(code);
        assert!(!closes && text.contains(title), "{title}: {text}");
    }
    assert!(after(KeyCode::Char('s')).1.contains("saving after this step"));
    assert!(after(KeyCode::Char('x')).1.contains("stopping after this step"));
    assert_eq!(
        [KeyCode::Char('q'), KeyCode::Esc, KeyCode::Char('z')].map(|code| after(code).0),
        [true, true, false]
    );
    assert!(requests.save.into_inner() && requests.stop.into_inner());
    // After the end, there is nothing to save or to stop.
    let requests = Requests::default();
    screen.end("Trained");
    press(KeyEvent::new(KeyCode::Char('s'), KeyModifiers::NONE), &mut screen, &requests);
    assert!(!requests.save.into_inner());
}

#[test]
fn nan_is_shown_and_a_long_log_shows_its_end() {
    let mut screen = Screen::new("long".into());
    screen.values(1, &[("loss".into(), 1.0)]);
    screen.values(2, &[("loss".into(), f64::NAN)]);
    (0..1000).for_each(|number| screen.line(format!("line {number}")));
    let text = drawn(&screen, 100, 30).backend().to_string();
    assert!(
        text.contains("loss=NaN") && text.contains("line 999") && !text.contains("line 900"),
        "{text}"
    );
}

#[derive(Module)]
struct Model(Linear);

impl TrainingModule for Model {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        batch.mean(&self.0.forward(&batch.get("x")).sum(-1))
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(1e-6))
    }
}

/// Trains until it is ended
#[derive(clap::Args)]
struct Endless {
    /// What goes wrong: panic, fail, or hang before the first step
    #[arg(long, default_value = "")]
    wrong: String,
}

/// What goes wrong.
struct Wrong(String);

impl Callback for Wrong {
    fn name(&self) -> &'static str {
        "Wrong"
    }
    fn on_fit_start(&mut self, _: &FitStart) {
        if self.0 == "hang" {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
    fn on_train_epoch_end(&mut self, _: &LogPoint, actions: &mut Actions) {
        match self.0.as_str() {
            "panic" => panic!("the callback panics"),
            "fail" => actions.fail("the callback fails"),
            _ => {}
        }
    }
}

impl CliApp for Endless {
    type Module = Model;
    fn module(&self) -> Result<Model> {
        Ok(Model(Linear::new(1, 1)))
    }
    fn fit_data(&self, _: &Options) -> Result<FitData> {
        // An epoch of a million batches.
        let x =
            TensorDataset::builder().array("x", [8_000_000, 1], vec![1.0f32; 8_000_000]).build()?;
        Ok(FitData {
            train: DataLoader::builder(x).batch_size(8).build()?,
            validation: None.into(),
        })
    }
    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        println!("written before the screen");
        builder.callback(Wrong(self.wrong.clone()))
    }
}

const ARGUMENTS: &str = "FULMEN_TEST_TUI";

/// The program that the tests below run in a terminal.
#[test]
#[ignore = "the program of the tests with tmux, which start it"]
fn program() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let _ = crate::main_from::<Endless>(
        ["endless", "fit", "--tui"].into_iter().chain(arguments.split_whitespace()),
    );
}

#[test]
fn without_a_terminal_nothing_changes() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "tui::tests::program", "--ignored", "--nocapture"]);
    program.env(ARGUMENTS, format!("--accelerator cpu --max-steps 3 --default-root-dir {root}"));
    let output = program.output().unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success() && stderr.contains("Training 2 parameters"), "{stderr}");
    assert!(
        stdout.contains("written before the screen") && stdout.contains("metrics: "),
        "{stdout}"
    );
    assert!(!stderr.contains('\x1b') && !stdout.contains('\x1b'), "{stderr}{stdout}");
}

/// A tmux server with one terminal, whose shell runs the program.
struct Tmux {
    folder: TempDir,
    server: String,
}

impl Tmux {
    /// Starts the program. The script records the terminal's mode before and after it.
    fn new(name: &str, size: (u16, u16), environment: &str, arguments: &str) -> Tmux {
        let tmux = Tmux {
            folder: tempfile::tempdir().unwrap(),
            server: format!("fulmen-{}-{name}", std::process::id()),
        };
        let folder = tmux.folder.path().display();
        let program = std::env::current_exe().unwrap();
        let script = format!(
            "cd {folder}\ntrap : INT\nstty -a > before\n{environment} {ARGUMENTS}='--accelerator cpu --max-epochs 1000 \
             --default-root-dir {folder}/runs {arguments}' {} --exact tui::tests::program --ignored --nocapture\n\
             echo $? > code\nstty -a > after\ntouch end\nread line\n",
            program.display()
        );
        std::fs::write(tmux.folder.path().join("script"), script).unwrap();
        let width = size.0.to_string();
        let height = size.1.to_string();
        let shell = format!("sh {folder}/script");
        tmux.call(&["-f", "/dev/null", "new-session", "-d", "-x", &width, "-y", &height, &shell]);
        tmux
    }

    fn call(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux").args(["-u", "-L", &self.server]).args(arguments).output();
        let output = output.expect("tmux is needed: apt-get install tmux");
        assert!(
            output.status.success(),
            "tmux {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A file that the script wrote.
    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    fn press(&self, key: &str) {
        self.call(&["send-keys", key]);
    }

    /// Waits until the terminal shows this text, and returns the screen.
    fn wait(&self, expected: &str) -> String {
        self.wait_until(expected, |text| text.contains(expected))
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let text = self.call(&["capture-pane", "-p", "-J", "-S", "-200"]);
            if is_so(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "timed out waiting for {what}: {text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the program has ended, checks that the terminal's mode is restored, and returns
    /// the screen.
    fn ended(&self) -> String {
        let text = self.wait_until("the end", |_| self.folder.path().join("end").exists());
        assert_eq!(self.read("after"), self.read("before"), "{text}");
        assert_eq!(
            self.call(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]).trim(),
            "0 1",
            "{text}"
        );
        // Capture again: there may be output since the last capture.
        self.call(&["capture-pane", "-p", "-J", "-S", "-200"])
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.server, "kill-server"]).output();
    }
}

#[test]
#[ignore = "needs tmux: cargo test -p fulmen-trainer-cli --features tui -- --ignored tui::"]
fn in_a_terminal_the_screen_follows_its_size_and_its_keys() {
    let tmux = Tmux::new("keys", (120, 40), "NO_COLOR=1", "");
    tmux.wait("samples/s");
    let text = tmux.wait("loss, 1 of 2: train_loss=");
    assert!(text.contains("2 parameters; 8 bytes"), "{text}");
    let colored = tmux.call(&["capture-pane", "-p", "-e"]);
    assert!(
        !["\x1b[36m", "\x1b[33m", "\x1b[38;5;6m"].iter().any(|color| colored.contains(color)),
        "{colored:?}"
    );
    // Frames are stacked, up to the last column. tmux reports a new size late; after the wait for
    // the frames, the program knows it.
    for (width, height, rows_of_frames) in [(50, 30, 4), (120, 40, 2)] {
        tmux.call(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
        tmux.wait_until("the screen in its new size", |_| {
            let text = tmux.call(&["capture-pane", "-p"]);
            let is_frame = |line: &&str| {
                line.starts_with('┌') && line.ends_with('┐') && line.chars().count() == width
            };
            text.contains("samples/s") && text.lines().filter(is_frame).count() == rows_of_frames
        });
    }
    tmux.press("Right");
    tmux.wait("lr, 2 of");
    tmux.press("s");
    tmux.wait("checkpoint: ");
    let saved = |runs: &Path| {
        let find = Command::new("find").arg(runs).args(["-name", "saved-step=*"]).output().unwrap();
        !find.stdout.is_empty()
    };
    tmux.wait_until("the checkpoint", |_| saved(&tmux.folder.path().join("runs")));
    // The screen closes, and the plain output continues.
    tmux.press("q");
    let text = tmux.wait_until("the bar", |text| {
        text.contains("Training 2 parameters") && text.contains("eta")
    });
    assert!(
        text.contains("written before the screen") && !text.contains("Data and memory"),
        "{text}"
    );
    tmux.press("C-c");
    let text = tmux.ended();
    assert!(
        text.contains("Stopped: interrupted by Ctrl-C") && text.contains("to resume"),
        "{text}"
    );
}

#[test]
#[ignore = "needs tmux: cargo test -p fulmen-trainer-cli --features tui -- --ignored tui::"]
fn the_terminal_is_restored_after_each_kind_of_end() {
    // The key, the arguments, and the expected output.
    for (name, key, arguments, expected) in [
        ("stop", "x", "", "Stopped: the key x was pressed"),
        ("interrupt", "C-c", "", "Interrupted: ending after this step"),
        ("panic", "", "--wrong panic --limit-train-batches 2", "the callback panics"),
        ("error", "", "--wrong fail --limit-train-batches 2", "the callback fails"),
    ] {
        let tmux = Tmux::new(name, (100, 30), "", arguments);
        if !key.is_empty() {
            tmux.wait("samples/s");
            tmux.press(key);
        }
        let text = tmux.ended();
        assert!(
            text.contains(expected) && text.contains("written before the screen"),
            "{name}: {text}"
        );
    }
}

#[test]
#[ignore = "needs tmux: cargo test -p fulmen-trainer-cli --features tui -- --ignored tui::"]
fn a_signal_that_ends_the_program_restores_the_terminal_first() {
    let tmux = Tmux::new("hang", (100, 30), "", "--wrong hang");
    tmux.wait("Starting");
    tmux.press("C-c");
    let text = tmux.ended();
    assert_eq!(tmux.read("code").trim(), "130", "{text}");
    assert!(text.contains("written before the screen") && !text.contains("Starting"), "{text}");
}
