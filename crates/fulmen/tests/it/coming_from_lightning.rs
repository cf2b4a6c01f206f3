//! Checks the chapter for users of PyTorch Lightning: it has every name of Lightning, and every
//! name of Fulmen in it exists.
//!
//! Out of scope: the behavior behind the names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use fulmen::trainer::internal::{replacement_for, replacement_for_value};
use fulmen::trainer::{Options, Precision, Strategy};

use super::book::{read, repository};

/// The names of PyTorch Lightning 2.6.2, by section of the chapter.
const LIGHTNING: &[(&str, &str)] = &[
    (
        "Flags of the Trainer",
        "accelerator strategy devices num_nodes precision logger callbacks fast_dev_run max_epochs min_epochs max_steps \
         min_steps max_time limit_train_batches limit_val_batches limit_test_batches limit_predict_batches overfit_batches \
         val_check_interval check_val_every_n_epoch num_sanity_val_steps log_every_n_steps enable_checkpointing \
         enable_progress_bar enable_model_summary accumulate_grad_batches gradient_clip_val gradient_clip_algorithm \
         deterministic benchmark inference_mode use_distributed_sampler profiler detect_anomaly barebones plugins \
         sync_batchnorm reload_dataloaders_every_n_epochs default_root_dir enable_autolog_hparams model_registry \
         suggest_integrations",
    ),
    (
        "Strategies",
        "auto ddp ddp_spawn ddp_fork ddp_notebook fsdp fsdp_cpu_offload deepspeed single_device single_xla xla xla_debug \
         xla_fsdp ModelParallelStrategy",
    ),
    (
        "Precision",
        "transformer-engine transformer-engine-float16 16-true 16-mixed bf16-true bf16-mixed 32-true 64-true 64 32 16 bf16",
    ),
    (
        "Callbacks",
        "BackboneFinetuning BaseFinetuning BasePredictionWriter BatchSizeFinder Callback Checkpoint DeviceStatsMonitor \
         EarlyStopping GradientAccumulationScheduler LambdaCallback LearningRateFinder LearningRateMonitor ModelCheckpoint \
         ModelPruning ModelSummary OnExceptionCheckpoint ProgressBar RichModelSummary RichProgressBar \
         StochasticWeightAveraging SpikeDetection ThroughputMonitor Timer TQDMProgressBar EMAWeightAveraging \
         WeightAveraging",
    ),
    (
        "Hooks of a callback",
        "state_key setup teardown on_fit_start on_fit_end on_sanity_check_start on_sanity_check_end on_train_batch_start \
         on_train_batch_end on_train_epoch_start on_train_epoch_end on_validation_epoch_start on_validation_epoch_end \
         on_test_epoch_start on_test_epoch_end on_predict_epoch_start on_predict_epoch_end on_validation_batch_start \
         on_validation_batch_end on_test_batch_start on_test_batch_end on_predict_batch_start on_predict_batch_end \
         on_train_start on_train_end on_validation_start on_validation_end on_test_start on_test_end on_predict_start \
         on_predict_end on_exception state_dict load_state_dict on_save_checkpoint on_load_checkpoint on_before_backward \
         on_after_backward on_before_optimizer_step on_before_zero_grad",
    ),
    (
        "Methods and hooks of a module",
        "optimizers lr_schedulers trainer fabric example_input_array current_epoch global_step global_rank local_rank on_gpu \
         automatic_optimization strict_loading logger loggers device_mesh print log log_dict all_gather forward \
         training_step validation_step test_step predict_step configure_callbacks configure_optimizers manual_backward \
         backward toggle_optimizer untoggle_optimizer toggled_optimizer clip_gradients configure_gradient_clipping \
         lr_scheduler_step optimizer_step optimizer_zero_grad freeze unfreeze to_onnx to_torchscript to_tensorrt \
         load_from_checkpoint on_fit_start on_fit_end on_train_start on_train_end on_validation_start on_validation_end \
         on_test_start on_test_end on_predict_start on_predict_end on_train_batch_start on_train_batch_end \
         on_validation_batch_start on_validation_batch_end on_test_batch_start on_test_batch_end on_predict_batch_start \
         on_predict_batch_end on_validation_model_zero_grad on_validation_model_eval on_validation_model_train \
         on_test_model_eval on_test_model_train on_predict_model_eval on_train_epoch_start on_train_epoch_end \
         on_validation_epoch_start on_validation_epoch_end on_test_epoch_start on_test_epoch_end on_predict_epoch_start \
         on_predict_epoch_end on_before_zero_grad on_before_backward on_after_backward on_before_optimizer_step \
         configure_sharded_model configure_model prepare_data setup teardown train_dataloader test_dataloader \
         val_dataloader predict_dataloader transfer_batch_to_device on_before_batch_transfer on_after_batch_transfer \
         on_load_checkpoint on_save_checkpoint",
    ),
    (
        "Choices of log",
        "prog_bar logger on_step on_epoch reduce_fx enable_graph sync_dist sync_dist_group add_dataloader_idx batch_size \
         metric_attribute rank_zero_only",
    ),
    (
        "Loggers",
        "LitLogger CometLogger CSVLogger Logger MLFlowLogger TensorBoardLogger WandbLogger",
    ),
    (
        "Profilers",
        "Profiler AdvancedProfiler PassThroughProfiler PyTorchProfiler SimpleProfiler XLAProfiler",
    ),
    (
        "Tuner",
        "scale_batch_size lr_find mode steps_per_trial init_val max_trials batch_arg_name margin max_val min_lr max_lr \
         num_training early_stop_threshold update_attr attr_name",
    ),
];

/// One row of a table.
struct Row<'a> {
    section: String,
    lightning: Vec<&'a str>,
    fulmen: &'a str,
    differs: &'a str,
}

/// The texts in backticks.
fn code(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn rows(chapter: &str) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    let mut section = String::new();
    for line in chapter.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading.replace('`', "");
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, lightning, fulmen, differs, _] = cells[..] else { continue };
        if lightning.starts_with('`') {
            rows.push(Row {
                section: section.clone(),
                lightning: code(lightning),
                fulmen,
                differs,
            });
        }
    }
    rows
}

/// Public names by their type or trait. Functions and types are under an empty name.
type Names = BTreeMap<String, BTreeSet<String>>;

fn identifier(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// The type in a line such as `impl T`, `impl … for T` or `pub struct T`, without its module.
fn owner(line: &str) -> Option<(&str, &str)> {
    if let Some(rest) = line.strip_prefix("impl") {
        let generics_and_type = rest.rsplit_once(" for ").map_or(rest, |(_, ty)| ty);
        let ty = match generics_and_type.strip_prefix('<') {
            Some(generics) => generics.split_once("> ")?.1,
            None => generics_and_type.trim_start(),
        };
        let path = ty.split(['<', ' ']).next()?;
        return Some(("impl", path.rsplit("::").next()?));
    }
    ["trait", "enum", "struct"].into_iter().find_map(|kind| {
        let rest = line.strip_prefix("pub ")?.strip_prefix(kind)?.strip_prefix(' ')?;
        Some((kind, identifier(rest)))
    })
}

/// Adds the public names of a file. Relies on rustfmt: an unindented line begins an item, and lines
/// indented once are its members.
fn add_names(source: &str, names: &mut Names) {
    let mut within = None;
    for line in source.lines() {
        let is_item = line.starts_with(|c: char| c.is_alphabetic()) && line != "where";
        if is_item {
            within = owner(line);
            let named = |kind| line.strip_prefix("pub ")?.strip_prefix(kind).map(identifier);
            let own = within.filter(|(kind, _)| *kind != "impl").map(|(_, name)| name);
            let item = named("fn ").or(named("mod ")).or(own);
            names.entry(String::new()).or_default().extend(item.map(str::to_owned));
        }
        let Some((kind, name)) = within else { continue };
        let Some(member) = line.strip_prefix("    ").filter(|member| !member.starts_with(' '))
        else {
            continue;
        };
        let public = member.strip_prefix("pub ");
        let declaration = match kind {
            "enum" => Some(member),
            "trait" => member.strip_prefix("fn "),
            "struct" => public,
            _ => public.and_then(|member| member.strip_prefix("fn ")),
        };
        let member_name = declaration.map(identifier).filter(|name| !name.is_empty());
        names.entry(name.to_owned()).or_default().extend(member_name.map(str::to_owned));
    }
}

fn add_folder(folder: &Path, names: &mut Names) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_folder(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            add_names(&read(&path), names);
        }
    }
}

fn public_names() -> Names {
    let mut names = Names::new();
    for krate in fs::read_dir(repository().join("crates")).unwrap() {
        add_folder(&krate.unwrap().path().join("src"), &mut names);
    }
    // A table in a macro defines the hooks that callbacks and modules share.
    let table = read(repository().join("crates/trainer/src/hooks/mod.rs"));
    let hooks: BTreeSet<String> = table
        .lines()
        .filter_map(|line| line.strip_suffix(");"))
        .map(|line| identifier(line.trim_start()))
        .filter(|name| name.starts_with("on_"))
        .map(str::to_owned)
        .collect();
    for owner in ["Callback", "TrainingModule"] {
        names.entry(owner.to_owned()).or_default().extend(hooks.clone());
    }
    names
}

/// Whether the name exists: an option, a flag, `Type`, `Type::member`, `module::function` or
/// `module::module`.
fn exists(name: &str, names: &Names) -> bool {
    if let Some(flag) = name.strip_prefix("--") {
        let field = flag.replace('-', "_");
        let command = read(repository().join("crates/trainer-cli/src/command.rs"));
        return command.contains(&format!("{field}: "))
            || Options::table().iter().any(|row| row.name == field);
    }
    if name.starts_with("FULMEN_") {
        let environment = read(repository().join("crates/trainer/src/options/environment.rs"));
        return environment.contains(&format!("\"{name}\""));
    }
    let (path, last) = name.rsplit_once("::").unwrap_or_default();
    let owner = path.rsplit("::").next().unwrap_or_default();
    if owner.starts_with(char::is_uppercase) {
        return names.get(owner).is_some_and(|members| members.contains(last));
    }
    let last = if path.is_empty() { name } else { last };
    names[""].contains(last)
        || (path.is_empty() && Options::table().iter().any(|row| row.name == last))
}

/// Whether a text in backticks could be a name in code.
fn is_name(text: &str) -> bool {
    text.starts_with(char::is_alphabetic)
        && text.chars().all(|c| c.is_alphanumeric() || "_:".contains(c))
        && (text.contains(['_', ':']) || text.starts_with(char::is_uppercase))
}

#[test]
fn each_name_of_fulmen_exists() {
    let chapter = read(repository().join("docs/src/coming-from-lightning.md"));
    let names = public_names();
    let rows = rows(&chapter);
    let mut checked = 0;
    let mut check = |name: &str| {
        assert!(exists(name, &names), "the chapter names `{name}`, which does not exist");
        checked += 1;
    };
    for row in &rows {
        let names = code(row.fulmen);
        assert!(
            !names.is_empty() || ["no", "the same"].contains(&row.fulmen),
            "{:?}: {}",
            row.lightning,
            row.fulmen
        );
        names.into_iter().for_each(&mut check);
        code(row.differs).into_iter().filter(|text| is_name(text)).for_each(&mut check);
    }
    let section = chapter.split("## Flags of the Trainer").nth(1).unwrap();
    section
        .lines()
        .filter(|line| !line.starts_with(['|', '#']))
        .flat_map(code)
        .filter(|text| is_name(text))
        .for_each(&mut check);
    assert!(checked > 200, "only {checked} names were found");

    for wrong in
        ["Callback::on_lunch", "max_epoch", "Trainer::save", "callbacks::never", "--print-configs"]
    {
        assert!(!exists(wrong, &names), "{wrong}");
    }
}

#[test]
fn the_chapter_has_each_name_of_lightning() {
    let chapter = read(repository().join("docs/src/coming-from-lightning.md"));
    let rows = rows(&chapter);
    for (section, names) in LIGHTNING {
        let present: BTreeSet<&str> = rows
            .iter()
            .filter(|row| row.section == *section)
            .flat_map(|row| row.lightning.iter().copied())
            .collect();
        let missing: Vec<&str> =
            names.split_whitespace().filter(|name| !present.contains(name)).collect();
        assert!(missing.is_empty(), "“{section}” lacks {missing:?}");
    }
}

#[test]
fn strategies_and_precisions_match_the_chapter() {
    let chapter = read(repository().join("docs/src/coming-from-lightning.md"));
    for row in rows(&chapter)
        .iter()
        .filter(|row| ["Strategies", "Precision"].contains(&row.section.as_str()))
    {
        for name in &row.lightning {
            let parsed = match row.section.as_str() {
                "Strategies" => {
                    name.parse().map(|strategy: Strategy| format!("Strategy::{strategy:?}"))
                }
                _ => name.parse().map(|precision: Precision| match precision {
                    Precision::Bits(16) => "Precision::Bf16Mixed".to_owned(),
                    Precision::Bits(32) => "Precision::F32".to_owned(),
                    Precision::Bits(64) => "no".to_owned(),
                    named => format!("Precision::{named:?}"),
                }),
            };
            let actual = parsed.unwrap_or_else(|_| "no".to_owned());
            let listed = code(row.fulmen).first().copied().unwrap_or(row.fulmen);
            // The chapter lists another way for a strategy that has no name here.
            assert!(
                actual == listed || (actual == "no" && *name == "ModelParallelStrategy"),
                "{name}: {actual}, not {listed}"
            );
        }
    }
}

/// The text of a cell without its links and backticks.
fn plain(cell: &str) -> String {
    let mut text = String::new();
    let mut rest = cell;
    while let Some((before, link)) = rest.split_once('[') {
        let (label, after) = link.split_once("](").unwrap();
        text.extend([before, label]);
        rest = after.split_once(')').unwrap().1;
    }
    (text + rest).replace('`', "")
}

#[test]
fn the_command_line_answers_in_the_words_of_the_chapter() {
    let chapter = read(repository().join("docs/src/coming-from-lightning.md"));
    let mut answered = 0;
    for row in rows(&chapter).iter().filter(|row| row.fulmen == "no") {
        for name in &row.lightning {
            let answer = match row.section.as_str() {
                "Flags of the Trainer" => replacement_for(name),
                "Strategies" => replacement_for_value("strategy", name),
                // The option's own check rejects 64 bits.
                "Precision" if !name.starts_with("64") => replacement_for_value("precision", name),
                _ => continue,
            };
            assert_eq!(answer.map(plain), Some(plain(row.differs)), "{name}: {answer:?}");
            answered += 1;
        }
    }
    assert_eq!(answered, 19);
    let table = Options::table();
    for name in LIGHTNING[0].1.split_whitespace() {
        let is_option = name == "logger" || table.iter().any(|row| row.name == name);
        assert_ne!(is_option, replacement_for(name).is_some(), "{name}");
    }
}
