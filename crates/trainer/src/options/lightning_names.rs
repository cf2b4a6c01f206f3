//! Options and values that PyTorch Lightning or PyTorch/XLA has or had and Fulmen doesn't, with
//! what to do instead.
//!
//! A test compares the sentences with those of the chapter “Coming from PyTorch Lightning”.

/// Options that Fulmen doesn't have: their names, and what to do instead.
const OPTIONS: &[(&[&str], &str)] = &[
    // The Trainer of Lightning 2.
    (
        &["num-nodes"],
        "start the program on each host, with `fulmen pod run`, or with FULMEN_COORDINATOR, FULMEN_PROCESS_ID and \
         FULMEN_NUM_PROCESSES",
    ),
    (&["callbacks"], "add callbacks in the program, with `TrainerBuilder::callback`"),
    (&["deterministic"], "leave it out; on one machine, the same `seed` gives the same bits"),
    (
        &["benchmark"],
        "leave it out; it belongs to cuDNN, and XLA chooses its algorithms when it compiles",
    ),
    (&["inference-mode"], "leave it out; validation and prediction record no gradient"),
    (
        &["use-distributed-sampler", "replace-sampler-ddp"],
        "leave it out; the loader always divides each batch, and `Sampler::is_presharded` keeps an order of your own",
    ),
    (
        &["plugins"],
        "set `precision` for a precision plugin; the checkpoint format and the way that hosts join are fixed",
    ),
    (&["sync-batchnorm"], "leave it out; statistics are always those of the global batch"),
    (
        &["enable-autolog-hparams"],
        "leave it out; the value passed to `TrainerBuilder::hyperparameters` is always logged",
    ),
    (
        &["model-registry"],
        "leave it out; it belongs to Lightning's own service, and `checkpoint_dir` can be a bucket",
    ),
    (&["suggest-integrations"], "leave it out; nothing is advertised"),
    (&["seed-everything"], "set `seed`"),
    // The Trainer of Lightning 1.
    (
        &["tpu-cores"],
        "set `accelerator` to tpu, and `devices`: how many (8), or which (`[4]`). tpu_cores counted cores from 1, but \
         devices are counted from 0",
    ),
    (
        &["gpus", "num-gpus"],
        "set `accelerator` to cuda, and `devices`: how many (8), or which (`[0]`), counted from 0",
    ),
    (&["auto-select-gpus"], "set `devices` to auto"),
    (&["num-processes"], "set `devices`; one process drives all devices of a host"),
    (&["ipus", "hpus"], "leave it out; devices are CPUs, NVIDIA GPUs or TPUs"),
    (&["distributed-backend"], "set `strategy`"),
    (&["amp-backend", "amp-level"], "set `precision` to bf16-mixed"),
    (&["auto-lr-find"], "give the program's command `tune`, or call `Trainer::lr_find` in it"),
    (
        &["auto-scale-batch-size"],
        "give the program's command `tune --find batch-size`, or call `Trainer::scale_batch_size` in it",
    ),
    (&["checkpoint-callback"], "set `enable_checkpointing`"),
    (&["weights-save-path"], "set `checkpoint_dir`"),
    (&["weights-summary"], "set `enable_model_summary`"),
    (&["progress-bar-refresh-rate", "process-position"], "set `enable_progress_bar`"),
    (&["flush-logs-every-n-steps"], "leave it out; loggers write each log point at once"),
    (&["log-gpu-memory"], "add the callback `DeviceStatsMonitor` in the program"),
    (&["track-grad-norm"], "set `log_grad_norm`"),
    (&["truncated-bptt-steps"], "cut the sequences in the dataset"),
    (&["move-metrics-to-cpu"], "leave it out; metrics are sums on the device"),
    (&["multiple-trainloader-mode"], "mix datasets in the program, with `MixSampler`"),
    (&["stochastic-weight-avg"], "call `TrainerBuilder::weight_averaging` in the program"),
    (&["reload-dataloaders-every-epoch"], "set `reload_dataloaders_every_n_epochs` to 1"),
    (&["resume-from-checkpoint"], "set `ckpt_path`"),
    (&["terminate-on-nan"], "set `detect_nan`"),
    // PyTorch/XLA and its examples.
    (&["num-cores", "nprocs"], "set `devices`: how many (8), or which (`[4]`)"),
    (&["start-method"], "leave it out; one process drives all devices of a host"),
    (&["use-spmd", "spmd"], "leave it out; XLA always partitions the program over the devices"),
    (&["pjrt-device"], "set `accelerator`"),
    (&["metrics-debug"], "give --metrics"),
    (&["num-epochs"], "set `max_epochs`"),
    (&["log-steps"], "set `log_every_n_steps`"),
    (&["logdir"], "set `default_root_dir`"),
];

/// Values that an option of Fulmen doesn't have: what kind of value, their names, and what to do
/// instead.
const VALUES: &[(&str, &[&str], &str)] = &[
    ("strategy", &["single_device", "single_xla"], "set `devices` to 1; the program is the same"),
    (
        "strategy",
        &["ddp_spawn", "ddp_fork", "ddp_notebook"],
        "use ddp; one process drives all devices of a host, in notebooks too",
    ),
    (
        "strategy",
        &["ddp_find_unused_parameters_true", "ddp_find_unused_parameters_false"],
        "use ddp; which parameters a step uses is known when it is recorded",
    ),
    ("strategy", &["fsdp_cpu_offload"], "use fsdp; the state stays on the devices"),
    (
        "strategy",
        &[
            "deepspeed",
            "deepspeed_stage_1",
            "deepspeed_stage_1_offload",
            "deepspeed_stage_2",
            "deepspeed_stage_2_offload",
            "deepspeed_stage_3",
            "deepspeed_stage_3_offload",
            "deepspeed_stage_3_offload_nvme",
        ],
        "use fsdp, which splits what stage 3 splits; nothing is offloaded",
    ),
    (
        "strategy",
        &["modelparallelstrategy", "model_parallel"],
        "give the mesh in the program, with `TrainerBuilder::mesh`, and shard parameters with `Parameter::with_sharding`",
    ),
    (
        "precision",
        &["transformer-engine", "transformer-engine-float16"],
        "use bf16-mixed; there is no 8-bit float type yet",
    ),
    (
        "profiler",
        &["simple", "advanced"],
        "use host, a trace for Perfetto with a row for each thread",
    ),
    ("profiler", &["pytorch"], "use xla, the plugin's trace of its devices; there is no PyTorch"),
    (
        "logger",
        &["comet", "neptune"],
        "use mlflow, wandb or tensorboard, or implement `Logger` in the program",
    ),
];

/// What to do instead of setting the option with this name.
pub fn replacement_for(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase().replace('_', "-");
    OPTIONS.iter().find(|(names, _)| names.contains(&&*name)).map(|row| row.1)
}

/// What to do instead of this value of an option: a `strategy`, `precision`, `profiler` or `logger`.
pub fn replacement_for_value(kind: &str, value: &str) -> Option<&'static str> {
    let value = value.to_lowercase();
    let mut rows = VALUES.iter().filter(|row| row.0 == kind);
    rows.find(|(_, values, _)| values.contains(&&*value)).map(|row| row.2)
}
