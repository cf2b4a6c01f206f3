//! `dump_dir`: each program of a run as files for a look at it: StableHLO, what the compiler made of it, its memory and cost.

use std::error::Error;
use std::io::Write as _;
use std::path::Path;

use fulmen_pjrt::{MemoryAnalysis, Value};
use fulmen_tensor::{Compiled, Function, Mesh};
use serde_json::{Value as Json, json};

/// Writes the files of a program, whose names begin with its number.
pub(super) fn dump(
    folder: &Path,
    number: u64,
    title: &str,
    (function, compiled): (&Function, &Compiled),
    mesh: &Mesh,
) -> Result<(), Box<dyn Error>> {
    let executable = compiled.executable();
    let name = format!("{number:02}_{}", file_name(title));
    let cost = executable.hlo()?.cost_by_line();
    let (flops, bytes) = cost.values().fold((0.0, 0.0), |(flops, bytes), it| (flops + it.flops, bytes + it.bytes));
    let about = json!({
        "program": title,
        "module": executable.name(),
        "signature": executable.signature().to_string(),
        "devices": executable.num_replicas() * executable.num_partitions(),
        "compile_seconds": compiled.compile_time().map(|time| time.as_secs_f64()),
        "memory": executable.memory_analysis().ok().map(|memory| memory_json(&memory)),
        // What the compiler reckons, where the plugin tells.
        "compiler_cost": executable.cost_analysis().ok().map(|cost| {
            cost.properties().iter().map(|(name, value)| (name.clone(), value_json(value))).collect::<Json>()
        }),
        // What is counted in the optimized program: operations, and bytes to and from the main memory.
        "cost": { "flops": flops, "bytes": bytes },
    });
    std::fs::create_dir_all(folder)?;
    for (extension, content) in [
        ("stablehlo.mlir", function.stablehlo_for(mesh)?.into_bytes()),
        ("hlo.pb", executable.optimized_hlo()?),
        ("json", format!("{about:#}\n").into_bytes()),
    ] {
        let path = folder.join(format!("{name}.{extension}"));
        fulmen_durable::write_unsynced(&path, Some(content.len() as u64), |file| file.write_all(&content))?;
    }
    Ok(())
}

/// Letters and digits in small letters, with `_` for what is between them.
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

fn value_json(value: &Value) -> Json {
    match value {
        Value::Int(value) => json!(value),
        Value::Float(value) => json!(value),
        other => json!(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::file_name;

    #[test]
    fn a_program_is_a_file_of_its_name() {
        assert_eq!(file_name("training step"), "training_step");
        assert_eq!(file_name("program `Ema/2`, 32 × 3"), "program_ema_2_32_3");
    }
}
