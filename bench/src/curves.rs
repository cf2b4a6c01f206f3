//! `curves`: compares the losses of 200 training steps in f32 with those of PyTorch. The peer
//! writes the weights and batches that both use. The distance of PyTorch's f32 from its f64 shows
//! the effect of rounding alone.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fulmen::data::TensorDataset;
use fulmen::models::Pretrained;
use fulmen::models::marian::Marian;
use fulmen::models::resnet::Config;
use fulmen::models::roberta::RobertaForMaskedLm;
use fulmen::nn::safetensors;
use fulmen::nn::weights::{Strictness, load_weights};
use fulmen::prelude::*;
use serde::Deserialize;
use serde_json::json;

use crate::models::{MaskedLanguageModel, ResNetClassifier, Translator};
use crate::peer::{PEERS, python_with};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The models: resnet18, transformer and roberta, separated by commas.
    #[arg(long, default_value = "resnet18,transformer,roberta", value_delimiter = ',')]
    workloads: Vec<String>,
    /// A Python with torch, torchvision and transformers [default: a new environment].
    #[arg(long)]
    python: Option<PathBuf>,
    /// Print one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// The peer's report on its training.
#[derive(Deserialize)]
struct TorchReport {
    torch: String,
    lr: f64,
    batch: usize,
    f32: Vec<f64>,
    f64: Vec<f64>,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let python = match &args.python {
        Some(python) => python.clone(),
        None => {
            python_with("curves_requirements.txt", "bench-curves-venv", "PyTorch, about 1 GB", 13)?
        }
    };
    let mut lines = Vec::new();
    for workload in &args.workloads {
        let folder = tempfile::tempdir()?;
        let torch = torch(&python, workload, folder.path())?;
        let ours = match workload.as_str() {
            "resnet18" => {
                let model = ResNetClassifier::new(
                    Config { num_classes: 10, ..Config::resnet18() },
                    torch.lr,
                );
                load_weights(
                    &model.resnet,
                    folder.path().join("model.safetensors"),
                    Strictness::Strict,
                )?;
                losses(&model, folder.path(), torch.batch)?
            }
            "transformer" => {
                let model = Marian::from_folder(folder.path())?;
                losses(&Translator { model, lr: torch.lr }, folder.path(), torch.batch)?
            }
            _ => {
                let model = RobertaForMaskedLm::from_folder(folder.path())?;
                losses(&MaskedLanguageModel { model, lr: torch.lr }, folder.path(), torch.batch)?
            }
        };
        let rounding = largest_difference(&torch.f32, &torch.f64)?;
        let difference = largest_difference(&ours, &torch.f32)?;
        let first = torch.f32[0];
        let last = torch.f32[torch.f32.len() - 1];
        println!(
            "{workload}: {} steps, loss {first:.4} to {last:.4}; at most {difference:.2e} from PyTorch {}, whose f32 is at most \
             {rounding:.2e} from its f64",
            ours.len(),
            torch.torch
        );
        lines.push(json!({ "workload": workload, "steps": ours.len(), "lr": torch.lr, "batch": torch.batch,
            "first_loss": first, "last_loss": last, "largest_relative_difference": difference, "torch_f32_to_f64": rounding,
            "ours_to_torch_f64": largest_difference(&ours, &torch.f64)?, "torch": torch.torch }));
    }
    if args.json {
        println!("{}", json!({ "curves": lines }));
    }
    Ok(())
}

/// Runs PyTorch, which writes weights and batches into a folder, and trains.
fn torch(python: &Path, workload: &str, folder: &Path) -> Result<TorchReport, Box<dyn Error>> {
    let mut command = Command::new(python);
    command
        .arg(Path::new(PEERS).join("torch_curves.py"))
        .args(["--workload", workload, "--folder"])
        .arg(folder);
    let output = command.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line)
        .map_err(|e| format!("the peer's output `{line}` is not valid: {e}").into())
}

/// Our loss at each step, on the batches in the folder.
fn losses(
    model: &impl TrainingModule,
    folder: &Path,
    batch: usize,
) -> Result<Vec<f64>, Box<dyn Error>> {
    let (arrays, _): (BTreeMap<String, Literal>, _) =
        safetensors::read(folder.join("batches.safetensors"))?;
    let mut data = TensorDataset::builder();
    for (name, array) in &arrays {
        let dims = array.ty().shape.dims();
        data = match array.ty().dtype {
            DType::F32 => data.array(name, dims, array.to_vec::<f32>()?),
            _ => data.array(name, dims, array.to_vec::<i32>()?),
        };
    }
    let loader = DataLoader::builder(data.build()?).batch_size(batch).build()?;
    let mut trainer = Trainer::builder()
        .accelerator(Accelerator::Cpu)
        .devices(1)
        .max_epochs(1)
        .default_root_dir(folder)
        .build()?;
    let mut step = trainer.train_step(model, &loader)?;
    let mut losses = Vec::new();
    for batch in step.batches() {
        step.run(&batch?)?;
        losses.push(step.logs()?.wait()?.get("train_loss").ok_or("the step logs no train_loss")?);
    }
    Ok(losses)
}

/// The largest difference between two curves at a step, relative to the second curve.
fn largest_difference(a: &[f64], b: &[f64]) -> Result<f64, Box<dyn Error>> {
    if a.is_empty() || a.len() != b.len() {
        return Err(format!("the numbers of losses differ: {} and {}", a.len(), b.len()).into());
    }
    Ok(a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs() / b.abs())
        .fold(0.0, |largest, next| if next > largest || next.is_nan() { next } else { largest }))
}
