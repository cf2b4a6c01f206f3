//! `dump_dir`: writes each program of a run to files: its StableHLO, the compiler's result, and its
//! memory and cost.

use std::error::Error;
use std::io::Write as _;
use std::path::Path;

use fulmen_pjrt::{MemoryAnalysis, NamedValue};
use fulmen_tensor::{Compiled, Function, Runtime};
use serde_json::{Value as Json, json};

/// Writes the files of a program. Their names begin with its number.
pub(super) fn dump(
    folder: &Path,
    number: u64,
    title: &str,
    function: &Function,
    compiled: &Compiled,
    runtime: &Runtime,
) -> Result<(), Box<dyn Error>> {
    let executable = compiled.executable();
    let name = format!("{number:02}_{}", file_name(title));
    let cost = executable.hlo()?.cost_by_line();
    let (flops, bytes) = cost
        .values()
        .fold((0.0, 0.0), |(flops, bytes), line| (flops + line.flops, bytes + line.bytes));
    let about = json!({
        "program": title,
        "module": executable.name(),
        "signature": executable.signature().to_string(),
        "devices": executable.num_replicas() * executable.num_partitions(),
        "compile_seconds": compiled.compile_time().map(|time| time.as_secs_f64()),
        "memory": executable.memory_analysis().ok().map(|memory| memory_json(&memory)),
        // The compiler's estimate, if the plugin reports it.
        "compiler_cost": executable.cost_analysis().ok().map(|cost| {
            cost.properties().iter().map(|(name, value)| (name.clone(), value_json(value))).collect::<Json>()
        }),
        // Counted in the optimized program: operations, and bytes to and from the main memory.
        "cost": { "flops": flops, "bytes": bytes },
    });
    std::fs::create_dir_all(folder)?;
    for (extension, content) in [
        ("stablehlo.mlir", runtime.stablehlo(function)?.into_bytes()),
        ("hlo.pb", executable.optimized_hlo()?),
        ("json", format!("{about:#}\n").into_bytes()),
    ] {
        let path = folder.join(format!("{name}.{extension}"));
        fulmen_durable::write_unsynced(&path, Some(content.len() as u64), |file| {
            file.write_all(&content)
        })?;
    }
    Ok(())
}

/// The letters and digits of a title, in lower case. Each run of other characters becomes `_`.
fn file_name(title: &str) -> String {
    let words = title.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_").to_lowercase()
}

fn memory_json(memory: &MemoryAnalysis) -> Json {
    json!({
        "argument_bytes": memory.argument_bytes,
        "output_bytes": memory.output_bytes,
        "alias_bytes": memory.alias_bytes,
        "temp_bytes": memory.temp_bytes,
        "generated_code_bytes": memory.generated_code_bytes,
        "peak_bytes": memory.peak_bytes,
        "total_bytes": memory.total_bytes(),
    })
}

fn value_json(value: &NamedValue) -> Json {
    match value {
        NamedValue::Int(value) => json!(value),
        NamedValue::Float(value) => json!(value),
        other => json!(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::file_name;

    #[test]
    fn a_file_is_named_after_its_program() {
        assert_eq!(file_name("training step"), "training_step");
        assert_eq!(file_name("program `Ema/2`, 32 × 3"), "program_ema_2_32_3");
    }
}
