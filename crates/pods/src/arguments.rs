//! The arguments of `fulmen pod`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use fulmen_durable::seconds;
use fulmen_tpu::{PodShape, Slice};

use crate::libtpu::LibtpuOption;

/// Runs one program on many hosts over ssh
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// `pod run` on the hosts of a TPU VM, with ssh options as for `--ssh-option`.
    pub fn run_on_tpu(
        name: &str,
        zone: &str,
        project: Option<&str>,
        ssh_options: Vec<String>,
        options: RunOptions,
    ) -> Arguments {
        let targets = Targets {
            tpu: Some(name.to_owned()),
            zone: Some(zone.to_owned()),
            project: project.map(str::to_owned),
            hosts: Vec::new(),
            ssh_config: None,
            ssh_options,
        };
        let run = Run { targets, shape: None, options, dry_run: false };
        Arguments { command: Command::Run(Box::new(run)) }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Copies a program to all hosts, starts it on each, and ends with the first that fails
    #[command(
        long_about = "Copies a program to all hosts, starts one process on each as a single run, and prints what they \
        print, with [worker i] before each line. Ctrl-C and SIGTERM go to all processes; a second Ctrl-C kills them. When \
        one fails, all end, and its exit code is the command's; 75 if a worker was lost or stuck"
    )]
    Run(Box<Run>),
    /// Shows the runs on the hosts. As for logs and stop, without --hosts and --tpu those on this
    /// machine
    Status(Status),
    /// Prints the output of a run's workers
    Logs(Logs),
    /// Ends a run on all hosts: SIGTERM, then SIGKILL
    Stop(Stop),
    /// Runs a command on all hosts at the same time
    Exec(Exec),
    /// Prints a manifest that starts a program on a cluster: a Kubernetes JobSet, a Ray program or
    /// a SkyPilot task
    #[command(
        long_about = "Prints a manifest that starts a program on a cluster: for GKE a JobSet, for Ray a Python program that `ray job \
        submit` takes, for SkyPilot a managed job. Exit code 75 and a lost host start the program again from its last \
        checkpoint. Nothing is started, and no secret is printed"
    )]
    Manifest(Manifest),
}

/// The hosts, and how to reach them.
#[derive(Clone, Debug, Args)]
pub(crate) struct Targets {
    /// The hosts of this TPU VM, as `gcloud compute tpus tpu-vm describe` lists them
    #[arg(long, value_name = "NAME", conflicts_with = "hosts")]
    pub(crate) tpu: Option<String>,
    /// The TPU's zone; by default that of gcloud's configuration
    #[arg(long, requires = "tpu")]
    pub(crate) zone: Option<String>,
    /// The TPU's project; by default that of gcloud's configuration
    #[arg(long, requires = "tpu")]
    pub(crate) project: Option<String>,
    /// The hosts for ssh, separated by commas; the first runs process 0
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    pub(crate) hosts: Vec<String>,
    /// The configuration file for ssh instead of ~/.ssh/config
    #[arg(short = 'F', long, value_name = "FILE")]
    pub(crate) ssh_config: Option<PathBuf>,
    /// An ssh option, for example Port=2222; can be repeated
    #[arg(long = "ssh-option", value_name = "NAME=VALUE")]
    pub(crate) ssh_options: Vec<String>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) targets: Targets,
    /// Rehearse a pod on CPUs: this many processes, with this many devices each. Without --hosts,
    /// all run on this machine
    #[arg(long = "virtual", value_name = "PROCESSESxDEVICES", conflicts_with_all = ["tpu", "each_chip", "libtpu"])]
    pub(crate) shape: Option<PodShape>,
    #[command(flatten)]
    pub(crate) options: RunOptions,
    /// Print the commands without running them
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What to start on the hosts, and how to watch it.
#[derive(Clone, Debug, Args)]
pub struct RunOptions {
    /// Wait until this path exists on each host, for example one that a start-up script writes
    #[arg(long, value_name = "PATH")]
    pub(crate) wait_for: Option<String>,
    /// How long to wait for the path of --wait-for
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub(crate) wait_timeout: Duration,
    /// Run independent programs, one per chip; {index} in the arguments becomes the program's index
    #[arg(long, conflicts_with = "coordinator")]
    pub(crate) each_chip: bool,
    /// The number of chips of a host, for --each-chip, instead of counting /dev/accel* and
    /// /dev/vfio/*
    #[arg(long, value_name = "NUMBER", requires = "each_chip")]
    pub(crate) chips: Option<usize>,
    /// The libtpu of the program: `install` puts the tested version on each host that lacks it, an
    /// absolute path names a file of each host, and `none` leaves the hosts as they are. With each,
    /// the program's accelerator is `tpu`, so that it never trains on the CPU. By default `install`
    /// on the hosts of a TPU VM, and nothing of this on others
    #[arg(long, value_name = "install|none|PATH")]
    pub(crate) libtpu: Option<LibtpuOption>,
    /// Return once the program has started everywhere; it keeps running without this machine
    #[arg(long, conflicts_with = "max_restarts")]
    pub(crate) detach: bool,
    /// How often to restart from the last checkpoint after exit code 75, or after a worker was lost,
    /// was stuck or crashed. The third crash at the same step is not restarted
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) max_restarts: u32,
    /// Restart on fewer hosts, at least this many, if others do not answer for --start-timeout. The
    /// next restart tries all of them again
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["coordinator", "each_chip", "detach"])]
    pub(crate) min_hosts: Option<usize>,
    /// A variable for the program's environment; without a value, it is taken from this command's
    /// environment. Can be repeated
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// The run's name; by default derived from the time
    #[arg(long, value_name = "NAME")]
    pub(crate) run: Option<String>,
    /// The address of process 0; by default the first host's own address, port 8482
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) coordinator: Option<String>,
    /// How long a host may be silent before it counts as lost. The programs also end this long
    /// after this machine is gone
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) lost_timeout: Duration,
    /// How long a worker may be stopped, or without progress after its first training step, before
    /// it counts as stuck
    #[arg(long, value_name = "SECONDS", default_value = "900", value_parser = seconds)]
    pub(crate) stuck_timeout: Duration,
    /// How long to try to reach the hosts for a restart
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub(crate) start_timeout: Duration,
    /// How long a program may take to save and end before it is killed
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) grace: Duration,
    /// The program, a local file, and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<String>,
}

impl RunOptions {
    /// The program and its arguments.
    pub fn program(&self) -> &[String] {
        &self.command
    }

    /// The value of `--libtpu` on the hosts of a TPU VM.
    pub fn libtpu_on_tpu(&self) -> String {
        self.libtpu.clone().unwrap_or_default().to_string()
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) targets: Targets,
    /// The run; by default all runs
    pub(crate) run: Option<String>,
    /// Print JSON: an array with an object for each worker
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Logs {
    #[command(flatten)]
    pub(crate) targets: Targets,
    /// The run; by default the newest
    pub(crate) run: Option<String>,
    /// Follow until all workers have ended, and exit with the exit code of the run. Ctrl-C does not
    /// affect the run
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Print only the last lines
    #[arg(long, short = 'n', value_name = "LINES", conflicts_with = "follow")]
    pub(crate) lines: Option<u64>,
    /// How long a host may be silent before it counts as lost
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) lost_timeout: Duration,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Stop {
    #[command(flatten)]
    pub(crate) targets: Targets,
    /// The run; by default the newest
    pub(crate) run: Option<String>,
    /// How long the programs may take to save and end before they are killed
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) grace: Duration,
    /// Print the commands without running them
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    pub(crate) targets: Targets,
    /// Print the commands without running them
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// The kinds of clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A JobSet for Google Kubernetes Engine
    Jobset,
    /// A Python program for a Ray cluster
    Ray,
    /// A managed job of SkyPilot
    Skypilot,
}

/// What only a JobSet has.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Jobset {
    /// The queue of Kueue that admits the JobSet
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,
    /// The priority class of the pods
    #[arg(long, value_name = "NAME")]
    pub(crate) priority_class: Option<String>,
    /// The Kubernetes service account of the pods
    #[arg(long, value_name = "NAME")]
    pub(crate) service_account: Option<String>,
    /// Run on spot nodes
    #[arg(long, conflicts_with = "reservation")]
    pub(crate) spot: bool,
    /// Run on the nodes of this reservation
    #[arg(long, value_name = "NAME")]
    pub(crate) reservation: Option<String>,
    /// A bucket of Cloud Storage that the pods see as a folder, through GCS FUSE. Can be repeated
    #[arg(long, value_name = "BUCKET=FOLDER")]
    pub(crate) bucket: Vec<String>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Manifest {
    /// The kind of cluster
    #[arg(long, value_enum)]
    pub(crate) kind: Kind,
    /// The TPU slice, such as v5e:4x4 or v6e-16, or several equal ones for a JobSet, such as
    /// 2*v5e:4x4; optional for Ray only
    #[arg(long, value_name = "SLICE",
          required_if_eq_any = [("kind", "jobset"), ("kind", "skypilot")])]
    pub(crate) topology: Option<Slice>,
    /// With Ray, the number of independent programs; {index} in the arguments becomes the program's
    /// index
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) programs: usize,
    /// The name of the run
    #[arg(long, default_value = "train")]
    pub(crate) name: String,
    /// The container image with the program, for a JobSet
    #[arg(long, required_if_eq("kind", "jobset"))]
    pub(crate) image: Option<String>,
    /// How often to restart
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    pub(crate) max_restarts: u32,
    #[command(flatten)]
    pub(crate) jobset: Jobset,
    /// The program's libtpu: `install` puts the tested version on each host, an absolute path names a
    /// file of the image or the host, and `none` adds nothing. With each, the program's accelerator
    /// is `tpu`, so that it never trains on the CPU. A Ray program without --topology gets none of
    /// this
    #[arg(long, value_name = "install|none|PATH", default_value_t)]
    pub(crate) libtpu: LibtpuOption,
    /// A variable for the program's environment; without a value, it is taken from this command's
    /// environment. The manifest contains it, so do not use it for secrets. Can be repeated
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// The program, by its path in the image or in the folder that Ray and SkyPilot copy, and its
    /// arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<String>,
}
