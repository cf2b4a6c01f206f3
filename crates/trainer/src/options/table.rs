//! The table of all options. `mod.rs` makes the options from it, and `trainer/builder.rs` the
//! methods of the builder.

pub(super) fn positive(value: &u64) -> Option<&'static str> {
    (*value == 0).then_some("it must be at least 1")
}

pub(super) fn limit(value: &f64) -> Option<&'static str> {
    (!value.is_finite() || *value < 0.0).then_some("it must be finite and at least 0")
}

/// Passes the table of all options to a macro. Each row is an option: its description,
/// `name: Type = default`, the environment variable, and a check that returns what is wrong with a
/// value.
macro_rules! option_table {
    ($rows:ident) => {
        $rows! {
            /// The kind of device to train on: auto, cpu, cuda or tpu.
            accelerator: Accelerator = Accelerator::Auto, "FULMEN_ACCELERATOR", |_| None;

            /// How many devices to train on (8), or which ones (`[5]` or `0,2`), or auto: all TPUs
            /// or GPUs of this machine, or one CPU device. With several processes, it selects the
            /// devices of each process.
            devices: Devices = Devices::auto(), "FULMEN_DEVICES", |_| None;

            /// How training uses several devices: ddp (each has all parameters), fsdp (parameters
            /// and optimizer state are sharded too), debug (ddp, and a fit ends with the metrics
            /// report), or numbers of devices for ddp, fsdp, context (sequences are split) and tp
            /// (layers are split), such as `fsdp=4,tp=2`.
            strategy: Strategy = Strategy::Ddp, "FULMEN_STRATEGY", |_| None;

            /// The element types of a model: 32-true, bf16-mixed (products in bf16), bf16-true or
            /// 16-mixed; a bare 16 means bf16-mixed.
            precision: Precision = Precision::F32, "FULMEN_PRECISION", Precision::config_error;

            /// Whether `bf16-true` rounds updated parameters up or down at random, so that the expected
            /// result is exact; otherwise, it rounds to nearest, which loses small updates.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            stochastic_rounding: bool = true, "FULMEN_STOCHASTIC_ROUNDING", |_| None;

            /// The precision of f32 products: default (on a TPU, one pass in bf16), high or
            /// highest.
            matmul_precision: MatmulPrecision = MatmulPrecision::Default, "FULMEN_MATMUL_PRECISION", |_| None;

            /// Whether the learning rate is multiplied by the number of devices (linear), by its
            /// square root (sqrt) or not at all (none).
            learning_rate_scaling: LearningRateScaling = LearningRateScaling::None, "FULMEN_LEARNING_RATE_SCALING", |_| None;

            /// Batches per optimizer step, which uses the gradient of all their samples; the last
            /// step of an epoch may have fewer.
            accumulate_grad_batches: u64 = 1, "FULMEN_ACCUMULATE_GRAD_BATCHES", positive;

            /// The value or norm to which gradients are clipped; 0 for no clipping.
            gradient_clip_val: f64 = 0.0, "FULMEN_GRADIENT_CLIP_VAL", limit;

            /// How gradients are clipped: norm (the Euclidean norm of all together) or value (each
            /// element).
            gradient_clip_algorithm: GradientClipAlgorithm = GradientClipAlgorithm::Norm, "FULMEN_GRADIENT_CLIP_ALGORITHM", |_| None;

            /// Whether to log the Euclidean norm of all gradients, before clipping, as `grad_norm`.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            log_grad_norm: bool = false, "FULMEN_LOG_GRAD_NORM", |_| None;

            /// Epochs to train for; -1 for no limit, which is the default if another option limits
            /// training.
            max_epochs: u64 = 10, "FULMEN_MAX_EPOCHS", positive;

            /// Optimizer steps to train for; 0 or -1 for no limit.
            max_steps: u64 = 0, "FULMEN_MAX_STEPS", |_| None;

            /// Time to train and validate for, such as 2h30m or 00:12:00:00 (days, hours, minutes,
            /// seconds), including the time before a resume; none for no limit.
            max_time: TrainDuration = TrainDuration::Unlimited, "FULMEN_MAX_TIME", TrainDuration::config_error_of_time;

            /// How long to train, in any unit: 10ep (epochs), 500ba (steps), 1e6sa (samples),
            /// 1e9tok (tokens) or 2h30m; none for no limit.
            max_duration: TrainDuration = TrainDuration::Unlimited, "FULMEN_MAX_DURATION", TrainDuration::config_error;

            /// Epochs to train before a callback or max_time can end training.
            min_epochs: u64 = 0, "FULMEN_MIN_EPOCHS", |_| None;

            /// Optimizer steps to make before a callback or max_time can end training.
            min_steps: u64 = 0, "FULMEN_MIN_STEPS", |_| None;

            /// Training batches per epoch: a number (10) or a fraction (0.1); 1.0 or -1 for all.
            limit_train_batches: BatchLimit = BatchLimit::ALL, "FULMEN_LIMIT_TRAIN_BATCHES", BatchLimit::config_error_of_some;

            /// Batches per validation, as a number or a fraction; -1 for all, 0 for no validation in a
            /// fit.
            limit_val_batches: BatchLimit = BatchLimit::ALL, "FULMEN_LIMIT_VAL_BATCHES", BatchLimit::config_error;

            /// Batches per test, as a number or a fraction; -1 for all.
            limit_test_batches: BatchLimit = BatchLimit::ALL, "FULMEN_LIMIT_TEST_BATCHES", BatchLimit::config_error_of_some;

            /// Batches to predict for, as a number or a fraction; -1 for all.
            limit_predict_batches: BatchLimit = BatchLimit::ALL, "FULMEN_LIMIT_PREDICT_BATCHES", BatchLimit::config_error_of_some;

            /// Train on the same few batches of the first epoch in every epoch, and validate on as
            /// many: a number or a fraction; 0 for off.
            overfit_batches: BatchLimit = BatchLimit::Count(0), "FULMEN_OVERFIT_BATCHES", BatchLimit::config_error;

            /// Try everything once: one epoch of one batch (or of this many) for training and
            /// validation, and as many for testing and predicting, without checkpoints and loggers.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            fast_dev_run: FastDevRun = FastDevRun::default(), "FULMEN_FAST_DEV_RUN", |_| None;

            /// When a fit validates: after each such fraction of an epoch (0.25), or number of
            /// optimizer steps of the run (500).
            val_check_interval: BatchLimit = BatchLimit::ALL, "FULMEN_VAL_CHECK_INTERVAL", BatchLimit::config_error_of_some;

            /// Validation batches to run before the first step, so that their errors are found
            /// early; 0 for none.
            num_sanity_val_steps: u64 = 0, "FULMEN_NUM_SANITY_VAL_STEPS", |_| None;

            /// Only train, to measure the speed: no log points within an epoch, loggers,
            /// checkpoints or progress bar.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            barebones: bool = false, "FULMEN_BAREBONES", |_| None;

            /// Steps between two log points, at which logged values are read from the device.
            log_every_n_steps: u64 = 50, "FULMEN_LOG_EVERY_N_STEPS", positive;

            /// Epochs between two validations.
            check_val_every_n_epoch: u64 = 1, "FULMEN_CHECK_VAL_EVERY_N_EPOCH", positive;

            /// Epochs after which the module's `train_dataloader` creates a new training loader; 0
            /// for never.
            reload_dataloaders_every_n_epochs: u64 = 0, "FULMEN_RELOAD_DATALOADERS_EVERY_N_EPOCHS", |_| None;

            /// The seed of initial weights and of random layers.
            #[arg(alias = "seed-everything")]
            seed: u64 = 0, "FULMEN_SEED", |_| None;

            /// Where runs are written, each in its own folder `version_N`.
            default_root_dir: PathBuf = PathBuf::from("runs"), "FULMEN_DEFAULT_ROOT_DIR", |_| None;

            /// Where checkpoints are written instead of the run's folder: a folder,
            /// gs://bucket/path or s3://bucket/path. Only one run at a time can use it; none for
            /// the run's folder.
            checkpoint_dir: PathBuf = PathBuf::new(), "FULMEN_CHECKPOINT_DIR", |_| None;

            /// A folder in memory, such as /dev/shm/run, to which checkpoints are written first. A
            /// thread then copies each to checkpoint_dir. All processes must see it.
            checkpoint_local: PathBuf = PathBuf::new(), "FULMEN_CHECKPOINT_LOCAL", |_| None;

            /// A checkpoint to resume from; `last` or `best` for the newest run's under
            /// default_root_dir; empty to start from scratch.
            ckpt_path: PathBuf = PathBuf::new(), "FULMEN_CKPT_PATH", |_| None;

            /// Whether a fit resumes from the newest complete checkpoint of this program under
            /// default_root_dir, if there is one (auto), or starts from scratch unless ckpt_path
            /// names one (never).
            resume: Resume = Resume::Never, "FULMEN_RESUME", |_| None;

            /// A file of compiled programs, written by `preflight --save`; programs that it lacks
            /// are compiled. Empty for none.
            aot: PathBuf = PathBuf::new(), "FULMEN_AOT", |_| None;

            /// How long a fit may take to save and end after SIGTERM or SIGHUP, such as `25s` or
            /// `1m30s`; then the program ends.
            grace: Duration = Duration::from_secs(25), "FULMEN_GRACE", |_| None;

            /// Whether to stop with an error when the training loss is NaN or infinite.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            detect_nan: bool = false, "FULMEN_DETECT_NAN", |_| None;

            /// Whether to watch every value of the training step, and to stop with the operation
            /// and line that made the first NaN or infinity; slow, and needs more memory.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            detect_anomaly: bool = false, "FULMEN_DETECT_ANOMALY", |_| None;

            /// Whether to write checkpoints: the last and the best.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            enable_checkpointing: bool = true, "FULMEN_ENABLE_CHECKPOINTING", |_| None;

            /// Whether to begin with a table of the module's parts, and one of the cost of each
            /// line of the step.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            enable_model_summary: bool = true, "FULMEN_ENABLE_MODEL_SUMMARY", |_| None;

            /// Whether to show progress: a bar on a terminal, lines elsewhere.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            enable_progress_bar: bool = true, "FULMEN_ENABLE_PROGRESS_BAR", |_| None;

            /// The loggers of the run: some of csv, jsonl, tensorboard, mlflow and wandb, or none;
            /// auto for the first three, or for the program's own if it adds any.
            #[arg(alias = "logger")]
            loggers: LoggerSet = LoggerSet::Auto, "FULMEN_LOGGERS", |_| None;

            /// Where to serve the run's metrics to Prometheus: a port (9090), which only this
            /// machine can reach, or an address with a port (0.0.0.0:9090) for other machines too;
            /// 0 for a free port, none for off.
            metrics_port: MetricsPort = MetricsPort::default(), "FULMEN_METRICS_PORT", |_| None;

            /// The trace that a fit records: none, host (the activity of the process's threads, as
            /// trace.json in the run's folder) or xla (also the plugin's trace of its devices in
            /// ten of the first steps).
            profiler: Profiler = Profiler::None, "FULMEN_PROFILER", |_| None;

            /// A folder to which each program of a run is written: its StableHLO, the optimized
            /// HLO, memory and cost; none for off.
            dump_dir: PathBuf = PathBuf::new(), "FULMEN_DUMP_DIR", |_| None;
        }
    };
}
pub(crate) use option_table;
