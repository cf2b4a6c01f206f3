//! Configuration files in YAML.

use super::*;

/// A YAML file in its own folder.
struct Yaml(tempfile::TempDir);

impl Yaml {
    fn new(text: &str) -> Yaml {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("run.yaml"), text).unwrap();
        Yaml(folder)
    }

    fn path(&self) -> String {
        self.0.path().join("run.yaml").to_str().unwrap().to_owned()
    }

    fn read(&self) -> Invocation<Fitting> {
        read::<Fitting>(&["fit", "--config", &self.path()]).map_err(|f| message(&f)).unwrap()
    }
}

/// Checks that a file causes this error after its name.
fn refused(text: &str, expected: &str) {
    let file = Yaml::new(text);
    let path = file.path();
    let failure = read::<Fitting>(&["fit", "--data-dir", "d", "--config", &path]).unwrap_err();
    assert!(matches!(failure, Failure::Option(_)), "{failure:?}");
    assert_eq!(message(&failure).strip_prefix(&format!("{path}:")), Some(expected), "{text}");
}

/// The layout of LightningCLI's files, with what its `--print_config` writes for options without a
/// value.
#[test]
fn a_file_of_lightnings_is_read() {
    let file = Yaml::new(
        "# lightning.pytorch\nseed_everything: 42\ntrainer:\n  accelerator: cpu\n  max_epochs: -1\n  max_steps: 500\n  \
         max_time: null\n  limit_val_batches: 1.0\n  logger: csv\n  detect_anomaly: no\n  enable_progress_bar: On\n\
         ckpt_path: null\ndata_dir: there\nmodel: {hidden: [3, 4]}\nrates:\n- 0.5\n- 1e-3\nverbose: 2\nshuffle: yes\n",
    );
    let invocation = file.read();
    let given = &invocation.app;
    assert_eq!(given.data_dir, "there");
    assert_eq!(given.hidden, [3, 4]);
    assert_eq!(given.rates, Some(vec![0.5, 1e-3]));
    assert_eq!((given.verbose, given.shuffle), (2, true));
    let resolved = options(&invocation);
    assert_eq!((resolved.seed, resolved.max_steps, resolved.max_epochs), (42, 500, u64::MAX));
    assert_eq!(resolved.loggers.to_string(), "csv");
    assert!(!resolved.detect_anomaly && resolved.enable_progress_bar);
    assert_eq!(resolved.limit_val_batches, BatchLimit::Share(1.0), "1.0 is not 1 batch");
    assert_eq!(resolved.max_time, Trainer::builder().options().unwrap().max_time);

    let toml = File::new("data_dir = 'there'\nlogger = 'csv'\nseed-everything = 42");
    let read = read::<Fitting>(&["fit", "--config", &toml.path(), "--seed_everything=43"]).unwrap();
    assert_eq!((options(&read).seed, options(&read).loggers), (43, resolved.loggers));
}

#[test]
fn texts_of_yaml_stay_texts() {
    for (value, expected) in [
        ("no", "no"),
        ("On", "On"),
        ("1.10", "1.10"),
        ("12:30:45", "12:30:45"),
        ("'007'", "007"),
        ("\"a # b\"", "a # b"),
        ("null and void", "null and void"),
        (">-\n  one\n  two", "one two"),
    ] {
        assert_eq!(Yaml::new(&format!("data_dir: {value}")).read().app.data_dir, expected);
    }
    let failure = read::<Fitting>(&["fit", "--config", &Yaml::new("data_dir: ~").path()]);
    assert!(message(&failure.unwrap_err()).contains("--data-dir"), "it counts as not given");
}

#[test]
fn anchors_and_merged_keys_are_resolved() {
    let file = Yaml::new(
        "data_dir: d\ntrainer: &base\n  seed: 3\n  max_epochs: &epochs 4\n  log-every-n-steps: *epochs\n",
    );
    let resolved = options(&file.read());
    assert_eq!((resolved.seed, resolved.max_epochs, resolved.log_every_n_steps), (3, 4, 4));
    let file = Yaml::new(
        "data_dir: d\ntrainer:\n  max_epochs: 2\n  <<: [{max-epochs: 9, seed: 5}, {seed: 6, max_steps: 7}]\n",
    );
    let resolved = options(&file.read());
    assert_eq!((resolved.seed, resolved.max_epochs, resolved.max_steps), (5, 2, 7));

    refused("a: &a [*a]", "1: this alias is within the value that it names");
    let mut bomb = "a: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let uses = [format!("*a{}", level - 1).as_str(); 10].join(", ");
        bomb.push_str(&format!("b{level}: &a{level} [{uses}]\n"));
    }
    refused(&bomb, "4: there are more than 10000 values");
    refused(&"[".repeat(100), "1: values are nested in more than 16 levels");
}

#[test]
fn mistakes_in_yaml_are_reported_with_line_and_key() {
    refused(
        "\nmax-epoch: 3",
        "2: there is no option `max-epoch`; did you mean `max-epochs`? --help lists all",
    );
    refused(
        "max_epoch: null",
        "1: there is no option `max_epoch`; did you mean `max-epochs`? --help lists all",
    );
    let sections = "The sections are [model], [output], [trainer], [tune], [preflight]";
    refused(
        "seed: 1\ntrianer:\n  x: 1",
        &format!("2: there is no section [trianer]; did you mean `trainer`? {sections}"),
    );
    refused(
        "fit:\n  trainer:\n    seed: 1",
        &format!(
            "1: there is no section [fit]. Write its keys without it: one file serves all commands. {sections}"
        ),
    );
    refused(
        "data:\n  batch_size: 1",
        &format!(
            "1: there is no section [data]. Write the program's own arguments at the top of the file. {sections}"
        ),
    );
    refused(
        "trainer:\n  sync_batchnorm: false",
        "2: there is no option `sync_batchnorm`: leave it out; statistics are always those of the global batch",
    );
    refused("trainer:\n  logger:\n    class_path: x", "2: `logger`: expected a value, not a table");
    refused("seed: 1\ntrainer: {seed: 2}", "2: `seed` is set a second time");
    refused("rates: [{a: 1}]", "1: `rates`: expected a value, not a table");
    refused("rates: [1.5, ~]", "1: `rates`: expected a value, not null");
    refused("- seed", "1: expected keys with values, such as `max_epochs: 5`");
    refused("? [a]\n: 1", "1: a key must be a name");
    refused("seed: 1\n---\nseed: 2", "2: there is a second document; a configuration has only one");
    refused(
        "data_dir: !!python/name:os.system x",
        "1: the tag `!!python/name:os.system` is not supported; write the value without it, a text in quotes",
    );
    refused("<<: 3", "1: `<<` needs an alias of keys with values, such as `*base`");
    refused(
        "seed: 010",
        "1: `seed`: 010 is a number with base 8 in YAML 1.1, but not in YAML 1.2; write it without the leading 0, or in \
         quotes if it is a text",
    );
    let digit = "for '--seed <SEED>': expected a whole number from 0 to 18446744073709551615";
    refused("seed: 1_000", &format!("1: `seed`: invalid value '1_000' {digit}"));
    refused("shuffle: 1", "1: `shuffle`: expected true or false");
    let file = Yaml::new("trainer:\n\tseed: 1\n");
    let failure = read::<Fitting>(&["fit", "--data-dir", "d", "--config", &file.path()]);
    let text = message(&failure.unwrap_err());
    assert!(text.starts_with(&format!("{}:2: ", file.path())) && text.contains("tab"), "{text}");
}

#[test]
fn an_empty_yaml_file_sets_nothing() {
    for text in ["", "# nothing\n", "---\n", "~"] {
        let file = Yaml::new(text);
        assert!(read::<Fitting>(&["fit", "--data-dir", "d", "--config", &file.path()]).is_ok());
    }
}
