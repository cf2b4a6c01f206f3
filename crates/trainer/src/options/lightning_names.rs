//! Options and values that PyTorch Lightning has or had and Fulmen doesn't, with their
//! replacements.

/// What replaces the option or value of Lightning with this name.
pub fn replacement_for(name: &str) -> Option<&'static str> {
    Some(match name.to_lowercase().replace('_', "-").as_str() {
        "tpu-cores" => {
            "set accelerator to tpu, and devices: how many (8), or which (`[4]`). tpu_cores counted cores from 1, but devices \
             are counted from 0"
        }
        "gpus" | "num-gpus" => {
            "set accelerator to cuda, and devices: how many (8), or which (`[0]`), counted from 0"
        }
        "num-nodes" => {
            "each host runs the program, and FULMEN_COORDINATOR, FULMEN_PROCESS_ID and FULMEN_NUM_PROCESSES join them"
        }
        "resume-from-checkpoint" => "give ckpt_path",
        "terminate-on-nan" => "give detect_nan",
        _ => return None,
    })
}
