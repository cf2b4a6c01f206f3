//! Command lines and configuration files, without a device.

mod tune;
mod yaml;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use expect_test::expect;
use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::optim::Sgd;
use fulmen_nn::{Linear, Module, optim::Optimizer};
use fulmen_tensor::Tensor;
use fulmen_trainer::preflight::Slice;
use fulmen_trainer::{
    Batch, BatchLimit, Options, Plan, StepContext, Trainer, TrainerBuilder, TrainingModule,
};

use super::failure::Failure;
use super::invocation::{Invocation, parse};
use super::print_config::print_config;
use super::*;

#[derive(Module)]
struct Line(Linear);

impl TrainingModule for Line {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        batch.mean(&self.0.forward(&batch.get("x")).sum(-1))
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.1))
    }
}

/// Fits a line
#[derive(Debug, PartialEq, clap::Args)]
struct Fitting {
    /// The folder of the data
    #[arg(long)]
    data_dir: String,
    /// Sizes of hidden layers
    #[arg(long, help_heading = "Model")]
    hidden: Vec<usize>,
    /// Rates, two of them
    #[arg(long, num_args = 2, help_heading = "Model")]
    rates: Option<Vec<f64>>,
    /// A number
    #[arg(long, default_value_t = 0.0, help_heading = "Model")]
    shift: f64,
    /// Say more
    #[arg(long, short, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Shuffle
    #[arg(long, conflicts_with = "sorted")]
    shuffle: bool,
    /// Sort
    #[arg(long)]
    sorted: bool,
}

impl CliApp for Fitting {
    type Module = Line;
    fn module(&self) -> Result<Line> {
        Ok(Line(Linear::new(1, 1)))
    }
    fn fit_data(&self, _: &Options) -> Result<FitData> {
        Err("not in this test".into())
    }
    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        builder.max_epochs(77).seed(5)
    }
}

fn read<A: CliApp>(args: &[&str]) -> std::result::Result<Invocation<A>, Failure> {
    parse(std::iter::once("prog").chain(args.iter().copied()).map(OsString::from).collect())
}

/// The resolved options of an app.
fn options<A: CliApp>(invocation: &Invocation<A>) -> Options {
    invocation.app.trainer(Trainer::builder()).args(invocation.trainer.clone()).options().unwrap()
}

fn message(failure: &Failure) -> String {
    match failure {
        Failure::Usage(error) => error.render().to_string(),
        Failure::Option(why) => why.clone(),
        Failure::Error(error) => error.to_string(),
    }
}

/// A configuration file in its own folder.
struct File(tempfile::TempDir);

impl File {
    fn new(text: &str) -> File {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("run.toml"), text).unwrap();
        File(folder)
    }
    fn path(&self) -> String {
        self.0.path().join("run.toml").to_str().unwrap().to_owned()
    }
}

/// Checks that a file causes this error after its name.
fn refused(text: &str, expected: &str) {
    let file = File::new(text);
    let path = file.path();
    let failure = read::<Fitting>(&["fit", "--data-dir", "d", "--config", &path]).unwrap_err();
    assert!(matches!(failure, Failure::Option(_)), "{failure:?}");
    assert_eq!(message(&failure).strip_prefix(&format!("{path}:")), Some(expected));
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_apps_defaults() {
    let file = File::new(
        "data_dir = \"there\"\nhidden = [3, 4]\nverbose = 2\n[trainer]\nmax_epochs = 3\nlog-every-n-steps = 7\n",
    );
    let path = file.path();
    let later = File::new("trainer.max-epochs = 4");
    let read = |args: &[&str]| read::<Fitting>(args).map_err(|f| message(&f)).unwrap();

    let plain = read(&["--config", &path]);
    let given = &plain.app;
    let resolved = options(&plain);
    assert_eq!(
        (given.data_dir.as_str(), &given.hidden[..], given.verbose),
        ("there", &[3, 4][..], 2)
    );
    assert_eq!((resolved.max_epochs, resolved.log_every_n_steps, resolved.seed), (3, 7, 5));

    let flags =
        read(&["fit", "--max-epochs=9", "--hidden", "8", "--config", &path, "-v", "--seed", "6"]);
    let given = &flags.app;
    let resolved = options(&flags);
    assert_eq!((given.data_dir.as_str(), &given.hidden[..], given.verbose), ("there", &[8][..], 1));
    assert_eq!((resolved.max_epochs, resolved.log_every_n_steps, resolved.seed), (9, 7, 6));

    let two = read(&["fit", "--config", &path, "--config", &later.path()]);
    assert_eq!(
        (options(&two).max_epochs, options(&two).log_every_n_steps),
        (4, 7),
        "the later file wins"
    );
    assert_eq!(options(&read(&["fit", "--data-dir", "d"])).max_epochs, 77);
}

#[test]
fn the_printed_config_gives_the_same_options_again() {
    let args: [&[&str]; 7] = [
        &[
            "fit",
            "--data-dir",
            "a \"b\" \\c",
            "--hidden",
            "1",
            "--hidden=2",
            "--rates",
            "0.5",
            "1e-9",
            "--shuffle",
            "-vv",
        ],
        &[
            "--data-dir",
            "007",
            "--ckpt-path",
            "1.10",
            "--detect-nan",
            "--seed",
            "18446744073709551615",
            "--json",
        ],
        &["fit", "--data-dir", "d", "--devices", "[5]", "--strategy=fsdp"],
        &[
            "preflight",
            "--data-dir",
            "d",
            "--topology",
            "v5e:2x4,v3-8",
            "--price",
            "--against",
            "h100,rtx3090",
            "--loader-seconds",
            "5",
            "--fetch-libtpu",
        ],
        &["predict", "--data-dir", "d", "--output", "x.csv"],
        &[
            "fit",
            "--data-dir",
            "d",
            "--devices",
            "8",
            "--strategy",
            "ddp",
            "--precision",
            "bf16-mixed",
        ],
        &[
            "test",
            "--data-dir",
            "true",
            "--enable-progress-bar=false",
            "--default-root-dir",
            "[5]",
            "--accelerator=cpu",
        ],
    ];
    for args in args {
        let first = read::<Fitting>(args).map_err(|f| message(&f)).unwrap();
        let text =
            print_config(&first.command, &first.matches, &options(&first), |_| None).unwrap();
        let file = File::new(&text);
        let subcommand: Vec<&str> =
            args.iter().copied().take_while(|arg| !arg.starts_with('-')).collect();
        let again = read::<Fitting>(&[&subcommand[..], &["--config", &file.path()]].concat());
        let again = again.map_err(|f| message(&f)).unwrap();
        assert_eq!(again.app, first.app, "{text}");
        assert_eq!(options(&again), options(&first), "{text}");
        assert_eq!((again.common.json, again.task), (first.common.json, first.task), "{text}");
        let twice =
            print_config(&again.command, &again.matches, &options(&again), |_| None).unwrap();
        assert_eq!(twice, text);
    }
}

#[test]
fn a_list_in_a_file_is_a_list_on_the_command_line() {
    for (toml, expected) in [("[0, 2]", "[0,2]"), ("'[5]'", "[5]"), ("8", "8"), ("'auto'", "auto")]
    {
        let file = File::new(&format!("data-dir = 'd'\ndevices = {toml}"));
        let invocation =
            read::<Fitting>(&["--config", &file.path()]).map_err(|f| message(&f)).unwrap();
        assert_eq!(options(&invocation).devices, expected.parse().unwrap(), "{toml}");
    }
}

#[test]
fn each_option_of_the_table_is_a_flag_and_is_printed() {
    let invocation = read::<Fitting>(&["fit", "--data-dir", "d"]).map_err(|f| message(&f)).unwrap();
    let text =
        print_config(&invocation.command, &invocation.matches, &options(&invocation), |_| None)
            .unwrap();
    let trainer = text.split("[trainer]\n").nth(1).unwrap();
    for row in Options::table() {
        let long = row.name.replace('_', "-");
        let flag = invocation.command.get_arguments().find(|arg| arg.get_long() == Some(&long));
        assert_eq!(flag.and_then(clap::Arg::get_help_heading), Some("Trainer"), "--{long}");
        let is_printed =
            |line: &str| line.trim_start_matches("# ").starts_with(&format!("{long} ="));
        assert_eq!(trainer.lines().filter(|line| is_printed(line)).count(), 1, "{long} in\n{text}");
    }
}

#[test]
fn the_config_of_a_run_says_where_each_value_comes_from() {
    let file = File::new("hidden = 3\n[trainer]\nseed = 7\nmax-epochs = 9\n");
    let args = ["fit", "--data-dir", "d", "--config", &file.path(), "--max-epochs", "2"];
    let invocation = read::<Fitting>(&args).map_err(|f| message(&f)).unwrap();
    let source = |arg: &clap::Arg| invocation.source(arg, &["detect_nan"]);
    let text =
        print_config(&invocation.command, &invocation.matches, &options(&invocation), source)
            .unwrap();
    let of_file = |line: &str, number: usize| format!("{line}  # {}:{number}", file.path());
    for line in [
        "data-dir = \"d\"  # command line",
        &of_file("hidden = [3]", 1),
        &of_file("seed = 7", 3),
        "max-epochs = 2  # command line",
        "detect-nan = false  # the program",
        "max-steps = 0",
    ] {
        assert!(text.lines().any(|printed| printed == line), "{line}: {text}");
    }
}

#[test]
fn the_printed_config_describes_each_key() {
    let invocation = read::<Fitting>(&["fit", "--data-dir", "d", "--hidden", "3"])
        .map_err(|f| message(&f))
        .unwrap();
    let text =
        print_config(&invocation.command, &invocation.matches, &options(&invocation), |_| None)
            .unwrap();
    let own = text.split("\n[trainer]").next().unwrap();
    expect![[r#"
        # The folder of the data
        data-dir = "d"
        # Say more
        verbose = 0
        # Shuffle
        shuffle = false
        # Sort
        sorted = false

        [model]
        # Sizes of hidden layers
        hidden = [3]
        # Rates, two of them
        # rates =
        # A number
        shift = 0

        [output]
        # End the output with one line of JSON
        json = false
        # Print the runtime's metrics at the end
        metrics = false
        # Show curves, throughput, queues, memory and the log on a full screen, if standard error is a terminal. Needs the feature `tui` of `fulmen`
        tui = false
    "#]]
    .assert_eq(own);
    assert!(
        text.contains(
            "\n# Steps between two log points, at which logged values are read from the device [env: FULMEN_LOG"
        ) && text.contains(" [env: FULMEN_MAX_EPOCHS] [default: 10]\nmax-epochs = 77\n"),
        "{text}"
    );
}

#[test]
fn mistakes_in_a_file_are_reported_with_line_and_key() {
    refused(
        "\nmax-epoch = 3",
        "2: there is no option `max-epoch`; did you mean `max-epochs`? --help lists all",
    );
    refused("[trainer]\nseed = 1\n\nxyz = 3", "4: there is no option `xyz`. --help lists all");
    let sections = "The sections are [model], [output], [trainer], [tune], [preflight]";
    refused(
        "[trianer]\nx = 1",
        &format!("1: there is no section [trianer]; did you mean `trainer`? {sections}"),
    );
    refused("seed = { x = 1 }", "1: `seed`: expected a value, not a table");
    refused("[[trainer]]\nseed = 1", "1: write [trainer] instead of [[trainer]]");
    refused(
        "[trainer]\ndata-dir = 'x'",
        "2: `data-dir` is not in [trainer] but at the top of the file",
    );
    refused("[model]\nseed = 1", "2: `seed` is not in [model] but in [trainer]");
    refused("seed = 1\n[trainer]\nseed = 2", "3: `seed` is set a second time");
    refused("max_epochs = 1\nmax-epochs = 2", "2: `max-epochs` is set a second time");
    refused(
        "config = 'x.toml'",
        "1: `config` can only be given on the command line, not in a file",
    );
    refused("seed = 1\nseed ==", "2: extra `=`, expected nothing");

    let digit = "for '--seed <SEED>': expected a whole number from 0 to 18446744073709551615";
    refused("seed = 'many'", &format!("1: `seed`: invalid value 'many' {digit}"));
    refused("seed = -1", &format!("1: `seed`: invalid value '-1' {digit}"));
    let accelerators = "`tpux` is not an accelerator; there are: auto, cpu, cuda, tpu";
    let message = format!(
        "2: `accelerator`: invalid value 'tpux' for '--accelerator <ACCELERATOR>': {accelerators}"
    );
    refused("[trainer]\naccelerator = 'tpux'", &message);
    let message = "1: `rates`: 2 values required for '--rates <RATES> <RATES>' but 1 was provided";
    refused("rates = [1.0]", message);
    let message =
        "invalid value 'perhaps' for '--detect-nan [<DETECT_NAN>]': value was not a boolean";
    refused("detect-nan = 'perhaps'", &format!("1: `detect-nan`: {message}"));
    refused("shuffle = 'yes'", "1: `shuffle`: expected true or false");
    refused("verbose = 'very'", "1: `verbose`: expected a number of times");
}

#[test]
fn one_file_serves_all_subcommands() {
    let file = File::new(
        "data-dir = 'd'\n[output]\noutput = 'x.csv'\n[preflight]\ntopology = ['v5e:2x4', 'v3-8']\n",
    );
    let on = |subcommand| {
        read::<Fitting>(&[subcommand, "--config", &file.path()]).map_err(|f| message(&f)).unwrap()
    };
    assert!(on("fit").matches.try_contains_id("output").is_err(), "fit has no such flag");
    assert_eq!(on("predict").matches.get_one::<PathBuf>("output"), Some(&PathBuf::from("x.csv")));
    let slices: Vec<String> = on("preflight")
        .matches
        .get_many::<Slice>("topology")
        .unwrap()
        .map(|s| s.requested_name().to_owned())
        .collect();
    assert_eq!(slices, ["v5e:2x4", "v3-8"]);
    refused(
        "[output]\ntopology = 'v5e:2x4'",
        "2: `topology` is not in [output] but in [preflight]",
    );
    // The value is checked, although fit has no such flag.
    let wrong = File::new("topology = 'v9'");
    let failure =
        read::<Fitting>(&["fit", "--data-dir", "d", "--config", &wrong.path()]).unwrap_err();
    assert!(message(&failure).contains("invalid value 'v9' for '--topology <SLICES>'"));
}

#[test]
fn a_file_and_a_flag_that_contradict_each_other_are_wrong_usage() {
    let file = File::new("sorted = true");
    let failure =
        read::<Fitting>(&["--data-dir", "d", "--config", &file.path(), "--shuffle"]).unwrap_err();
    assert!(message(&failure).contains("cannot be used with"), "{}", message(&failure));
    let missing = read::<Fitting>(&["--config", "/nowhere/run.toml"]).unwrap_err();
    assert!(message(&missing).starts_with("--config /nowhere/run.toml: "), "{}", message(&missing));
}

#[test]
fn clap_reports_wrong_usage() {
    let usage = |args: &[&str], expected: &str| match read::<Fitting>(args).unwrap_err() {
        Failure::Usage(error) => {
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(expected), "{error}");
        }
        other => panic!("{other:?}"),
    };
    usage(&["fit"], "--data-dir");
    usage(&["fitt", "--data-dir", "d"], "unrecognized subcommand 'fitt'");
    usage(&["--data-dir", "d", "--max-epoch", "3"], "a similar argument exists: '--max-epochs'");
    usage(&["--data-dir", "d", "fit"], "cannot be used with");
    usage(&["fit", "--data-dir", "d", "--accelerator", "tpux"], "auto, cpu, cuda, tpu");
    let Failure::Usage(help) = read::<Fitting>(&["--help"]).unwrap_err() else { panic!("no help") };
    assert_eq!(help.exit_code(), 0);
    assert!(help.to_string().starts_with("Fits a line\n\nUsage: prog [OPTIONS]"), "{help}");
}

#[test]
fn old_names_are_answered_with_new_ones() {
    for (args, expected) in [
        (
            &["--tpu_cores=8"][..],
            "there is no option --tpu_cores: set `accelerator` to tpu, and `devices`",
        ),
        (&["--gpus", "2"], "there is no option --gpus: set `accelerator` to cuda"),
        (
            &["--sync_batchnorm", "true"],
            "there is no option --sync_batchnorm: leave it out; statistics are always those of the global batch",
        ),
        (&["--deterministic"], "there is no option --deterministic: leave it out; on one machine"),
        (&["--trainer.max_epochs=3"], "no option --trainer.max_epochs: write --max-epochs"),
        (&["--strategy", "deepspeed_stage_3"], "is not a strategy: use fsdp, which splits what"),
        (&["--profiler=advanced"], "is not a profiler: use host, a trace for Perfetto"),
        (&["--precision", "transformer-engine"], "is not a precision: use bf16-mixed; there is"),
        (&["--logger", "comet"], "is not a logger: use mlflow, wandb or tensorboard"),
        (&["--accelerator", "mps"], "is not an accelerator: devices are CPUs, NVIDIA GPUs or TPUs"),
        (
            &["--precision", "64"],
            "precision: 64 is not possible, a TPU has no 64-bit floats; use 32-true",
        ),
    ] {
        let (message, code) =
            run_error(&[&["fit", "--data-dir", "d", "--print-config"], args].concat());
        assert!(message.contains(expected), "{message}");
        assert_eq!(code, format!("{:?}", ExitCode::from(2)));
    }
    refused(
        "[trainer]\nresume_from_checkpoint = 'x'",
        "2: there is no option `resume_from_checkpoint`: set `ckpt_path`",
    );
}

#[test]
fn a_flag_may_have_underscores_and_lightnings_names_of_values_work() {
    let args = ["fit", "--data_dir", "d", "--max_epochs=5", "--fast_dev_run", "--shift", "-1e-3"];
    let more =
        ["--accelerator=gpu", "--precision", "16-mixed", "--logger", "csv", "--print_config"];
    let read = |args: &[&str]| read::<Fitting>(args).map_err(|f| message(&f)).unwrap();
    let invocation = read(&[&args[..], &more].concat());
    let resolved = options(&invocation);
    assert_eq!((invocation.app.data_dir.as_str(), invocation.app.shift), ("d", -1e-3));
    assert_eq!(
        (resolved.fast_dev_run.batches(), resolved.accelerator.to_string()),
        (1, "cuda".into())
    );
    assert_eq!(
        (resolved.loggers.to_string(), resolved.precision.name()),
        ("csv".into(), "16-mixed")
    );
    assert!(invocation.common.print_config);
    assert_eq!(options(&read(&["--data_dir=a_b", "--max_epochs", "5"])).max_epochs, 5);
    assert_eq!(read(&["--data_dir=--a_b"]).app.data_dir, "--a_b", "a value is left as it is");
    // What follows `--` is not a flag.
    let rest = ["fit", "--data_dir", "d", "--", "--max_epochs=5"];
    let error = message(&crate::tests::read::<Fitting>(&rest).unwrap_err());
    assert!(error.contains("--max_epochs=5"), "{error}");
}

/// The message and the exit code of a command with wrong usage or an invalid option.
fn run_error(args: &[&str]) -> (String, String) {
    let args = std::iter::once("prog").chain(args.iter().copied()).map(OsString::from).collect();
    let failure = run::run::<Fitting>(args).unwrap_err();
    (message(&failure), format!("{:?}", failure.report()))
}

#[test]
fn a_negative_number_is_a_value_and_its_error_names_the_option() {
    for row in Options::table() {
        let long = format!("--{}", row.name.replace('_', "-"));
        let paths = [
            "--aot",
            "--checkpoint-dir",
            "--checkpoint-local",
            "--ckpt-path",
            "--default-root-dir",
            "--dump-dir",
        ];
        let limits = [
            "--limit-predict-batches",
            "--limit-test-batches",
            "--limit-train-batches",
            "--limit-val-batches",
            "--max-epochs",
            "--max-steps",
        ];
        if paths.contains(&&*long) || limits.contains(&&*long) || long == "--devices" {
            continue;
        }
        let (message, code) = run_error(&["fit", "--data-dir", "d", &long, "-1", "--print-config"]);
        let names_it = message.contains(&long) && message.contains("'-1'")
            || message.contains(&format!("{}: -1", row.name));
        assert!(names_it && !message.contains("unexpected argument"), "{long}: {message}");
        assert_eq!(code, format!("{:?}", ExitCode::from(2)), "{long}");
    }
    let given =
        read::<Fitting>(&["--data-dir", "d", "--rates", "-1", "-0.5", "--shift", "-5e-4"]).unwrap();
    assert_eq!((given.app.rates, given.app.shift), (Some(vec![-1.0, -0.5]), -5e-4));
    let infinite = read::<Fitting>(&["--data-dir", "d", "--shift", "-inf"]).unwrap();
    assert_eq!(infinite.app.shift, f64::NEG_INFINITY);
    let two = read::<Fitting>(&["--data-dir", "d", "--shift", "-1e-3", "-5e-4"]).unwrap_err();
    assert!(message(&two).contains("unexpected argument"), "{}", message(&two));
    let file = File::new("data-dir = 'd'\nrates = [1.5, -2.0]");
    assert_eq!(
        read::<Fitting>(&["--config", &file.path()]).unwrap().app.rates,
        Some(vec![1.5, -2.0])
    );
}

#[test]
fn minus_one_is_no_limit_as_in_lightning() {
    let fit = ["fit", "--data-dir", "d", "--limit_train_batches", "-1", "--limit_val_batches=-1"];
    let more = ["--limit_test_batches", "-1", "--limit_predict_batches", "-1", "--max_steps", "-1"];
    let read = |args: &[&str]| read::<Fitting>(args).map_err(|f| message(&f)).unwrap();
    let invocation = read(&[&fit[..], &more, &["--max_epochs", "-1"]].concat());
    let resolved = options(&invocation);
    for limit in [
        resolved.limit_train_batches,
        resolved.limit_val_batches,
        resolved.limit_test_batches,
        resolved.limit_predict_batches,
    ] {
        assert_eq!(limit, BatchLimit::Share(1.0));
    }
    assert_eq!((resolved.max_epochs, resolved.max_steps), (u64::MAX, 0));
    // The written configuration says so, and reading it back changes nothing.
    let text = print_config(&invocation.command, &invocation.matches, &resolved, |_| None).unwrap();
    assert!(text.contains("\nmax-epochs = -1\n"), "{text}");
    let file = File::new(&text);
    assert_eq!(options(&read(&["fit", "--config", &file.path()])), resolved);
    // With another limit, it follows from that one.
    let limited = read(&["fit", "--data-dir", "d", "--max_epochs=-1", "--max_steps=3"]);
    let text =
        print_config(&limited.command, &limited.matches, &options(&limited), |_| None).unwrap();
    assert!(text.contains("\n# max-epochs =\n"), "{text}");
}

#[test]
fn invalid_options_end_with_2_wherever_they_are_detected() {
    let wrong = File::new("max-epoch = 3");
    let cases: [(&[&str], &str); 7] = [
        (&["fit", "--devices", "two"], "'--devices <DEVICES>': `two` does not select devices"),
        (&["fit", "--devices", "1000"], "devices: "),
        (&["fit", "--max-epochs", "0", "--print-config"], "max_epochs: 0 is not possible"),
        (&["fit", "--config", &wrong.path()], "there is no option `max-epoch`"),
        (&["fit", "--config", "/nowhere/run.toml"], "--config /nowhere/run.toml: "),
        (
            &["predict", "--output", "x.txt"],
            "--output x.txt: the name must end in .csv or .safetensors",
        ),
        (&["predict", "--output", "/nowhere/x.csv"], "there is no folder /nowhere"),
    ];
    for (args, expected) in cases {
        let (message, code) =
            run_error(&[args, &["--data-dir", "d", "--accelerator", "cpu"]].concat());
        assert!(message.contains(expected), "{message}");
        assert_eq!(code, format!("{:?}", ExitCode::from(2)), "{message}");
    }
    let (message, code) = run_error(&["fit", "--data-dir", "d", "--accelerator", "cpu"]);
    assert_eq!((message.as_str(), code), ("not in this test", format!("{:?}", ExitCode::from(1))));
}

#[cfg(not(feature = "tui"))]
#[test]
fn a_program_without_the_feature_says_how_to_get_a_full_screen() {
    let (message, code) = run_error(&["fit", "--data-dir", "d", "--tui"]);
    let expected =
        "--tui: this program has no full screen; give `fulmen` the feature `tui` in its Cargo.toml";
    assert_eq!((message.as_str(), code), (expected, format!("{:?}", ExitCode::from(2))));
}

#[test]
fn a_very_long_value_is_shortened_in_messages() {
    let long = "long".repeat(25_000);
    let flag = format!("--{long}");
    let seed = File::new(&format!("seed = '{long}'"));
    let unknown = File::new(&format!("'{long}' = 1"));
    let cases: [&[&str]; 5] = [
        &["--seed", &long],
        &["--accelerator", &long],
        &[&flag],
        &["--config", &seed.path()],
        &["--config", &unknown.path()],
    ];
    for args in cases {
        let failure = read::<Fitting>(&[&["fit", "--data-dir", "d"], args].concat()).unwrap_err();
        let text = failure.short().unwrap_or_else(|| message(&failure));
        assert!(
            text.len() < 1000 && text.contains("longlong") && text.contains("… (1000"),
            "{} bytes: {text}",
            text.len()
        );
    }
}

/// Has a flag with the name of a Trainer option.
#[derive(Debug, clap::Args)]
struct Clash {
    /// The seed of the program.
    #[arg(long)]
    seed: u8,
}

impl CliApp for Clash {
    type Module = Line;
    fn module(&self) -> Result<Line> {
        Ok(Line(Linear::new(1, self.seed.into())))
    }
    fn fit_data(&self, _: &Options) -> Result<FitData> {
        Err("not in this test".into())
    }
}

/// A model of 40 GB, which is never created.
#[derive(Debug, clap::Args)]
struct Large {}

impl CliApp for Large {
    type Module = Line;
    fn module(&self) -> Result<Line> {
        Ok(Line(Linear::new(100_000, 100_000)))
    }
    fn fit_data(&self, _: &Options) -> Result<FitData> {
        let x = TensorDataset::builder().array("x", [8, 100_000], vec![0.0f32; 800_000]).build()?;
        Ok(FitData {
            train: DataLoader::builder(x).batch_size(8).build()?,
            validation: None.into(),
        })
    }
}

#[test]
fn preflight_of_a_model_that_does_not_fit_ends_with_1_and_no_error() {
    let Some(_) = crate::libtpu::libtpu() else { return };
    let args = ["prog", "preflight", "--topology", "v5e:1x1", "--json"].map(OsString::from);
    let code = run::run::<Large>(args.to_vec()).map_err(|f| message(&f)).unwrap();
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
}

/// Has a subcommand.
#[derive(Debug, clap::Args)]
struct Nested {
    #[command(subcommand)]
    _inner: Inner,
}

#[derive(Debug, clap::Subcommand)]
enum Inner {
    Export,
}

impl CliApp for Nested {
    type Module = Line;
    fn module(&self) -> Result<Line> {
        Err("not in this test".into())
    }
    fn fit_data(&self, _: &Options) -> Result<FitData> {
        Err("not in this test".into())
    }
}

#[test]
fn an_app_cannot_use_a_reserved_name() {
    let failure = read::<Clash>(&["--seed", "1"]).unwrap_err();
    assert!(
        message(&failure)
            .contains("argument `seed` has the name of an argument that every program has")
    );
    let failure = read::<Nested>(&["export"]).unwrap_err();
    assert!(message(&failure).contains("contain the subcommand `export`"));
}

#[test]
fn a_configuration_that_is_not_a_small_text_file_is_rejected_before_it_is_read() {
    let refused = |path: &str, expected: &str| {
        let failure = read::<Fitting>(&["fit", "--data-dir", "x", "--config", path]).unwrap_err();
        let message = message(&failure);
        assert!(
            message.contains(&format!("--config {path}: ")) && message.contains(expected),
            "{message}"
        );
    };
    let file = File::new("");
    refused("/dev/zero", "not a regular file");
    refused(file.0.path().to_str().unwrap(), "a folder");
    // A sparse file of a terabyte.
    std::fs::OpenOptions::new().write(true).open(file.path()).unwrap().set_len(1 << 40).unwrap();
    refused(&file.path(), "larger than 1.0 MB");
    std::fs::write(file.path(), b"max-epochs = 3 # \xff").unwrap();
    refused(&file.path(), "not UTF-8 text");
}

#[test]
fn a_configuration_may_come_through_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::write(pipe, "max-epochs = 3\n").unwrap()
    });
    let read =
        read::<Fitting>(&["fit", "--data-dir", "x", "--config", pipe.to_str().unwrap()]).unwrap();
    writer.join().unwrap();
    assert_eq!(options(&read).max_epochs, 3);
}

#[test]
fn a_program_describes_itself_to_shells_and_as_manual_pages() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().to_str().unwrap();
    let code = |args: &[&str]| format!("{:?}", main_from::<Fitting>(args));
    let [success, usage] = [ExitCode::SUCCESS, ExitCode::from(2)].map(|code| format!("{code:?}"));
    assert_eq!(code(&["bin/line", "man", "--output", output]), success);
    let page = std::fs::read_to_string(folder.path().join("line-fit.1")).unwrap();
    assert!(page.contains("data\\-dir") && page.contains("max\\-epochs"), "{page}");
    // Completions do not require --data-dir.
    assert_eq!(code(&["line", "completions", "zsh"]), success);
    assert_eq!(code(&["line", "completions", "abacus"]), usage);
}

/// A program with an argument of one or two texts.
#[derive(Debug, PartialEq, clap::Args)]
struct Texts {
    #[arg(long, num_args = 1..=2)]
    names: Vec<String>,
    #[arg(long, env = "FULMEN_TEST_UPLOAD", default_value = "default-token")]
    upload: Secret,
}

impl CliApp for Texts {
    type Module = Line;
    fn module(&self) -> Result<Line> {
        Ok(Line(Linear::new(1, 1)))
    }
    fn fit_data(&self, _: &Options) -> Result<FitData> {
        Err("not in this test".into())
    }
}

#[test]
fn a_value_in_a_file_cannot_set_another_argument() {
    let file = File::new("names = [\"a\", \"--max-epochs=9\"]");
    let failure = read::<Texts>(&["fit", "--config", &file.path()]).unwrap_err();
    let expected = "`names`: one of its values sets another argument, `max_epochs`";
    assert!(message(&failure).ends_with(expected), "{}", message(&failure));
    let file = File::new("names = [\"a\", \"b\"]");
    assert_eq!(read::<Texts>(&["fit", "--config", &file.path()]).unwrap().app.names, ["a", "b"]);
}

#[test]
fn a_secret_is_not_in_the_help() {
    let mut command = super::command::command::<Texts>("prog").unwrap();
    let help = command.find_subcommand_mut("fit").unwrap().render_long_help().to_string();
    assert!(help.contains("--upload") && !help.contains("default-token"), "{help}");
}

#[test]
fn of_a_flag_given_twice_the_last_one_counts() {
    let args = ["fit", "--data-dir", "a", "--max-epochs", "1", "--data-dir=b", "--max-epochs=2"];
    let invocation = read::<Fitting>(&args).map_err(|f| message(&f)).unwrap();
    assert_eq!((&*invocation.app.data_dir, options(&invocation).max_epochs), ("b", 2));
    let both = read::<Fitting>(&[
        "--data-dir",
        "a",
        "--seed",
        "3",
        "--seed",
        "4",
        "--shuffle",
        "--shuffle",
    ]);
    let both = both.map_err(|f| message(&f)).unwrap();
    assert!(both.app.shuffle && options(&both).seed == 4);
    let lists = read::<Fitting>(&["--data-dir", "a", "--hidden", "1", "--hidden", "2"]).unwrap();
    assert_eq!(lists.app.hidden, [1, 2], "a list has all values");
}
