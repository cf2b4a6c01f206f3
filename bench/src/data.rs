//! `data`: from JPEG files to batches for training, in comparison with the loaders for Python, in
//! turns on this machine.
//!
//! Each contender is a separate process, so that its memory can be measured. On `epoch`, it reads
//! every file once. It reports how many images came after the first batch, and in how many seconds.
//!
//! The peers are in `peers/data_peer.py`. `peers/make_jpegs.py` makes the files.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use fulmen::data::images::{ImageFolder, ImagePipeline};
use fulmen::data::{DataLoader, Source};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::peer::{PEERS, python_with};
use crate::row::{Row, print_row};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of the JPEGs, which are generated if it does not exist [default: in the cache
    /// folder].
    #[arg(long)]
    folder: Option<PathBuf>,
    /// The number of JPEGs to generate.
    #[arg(long, default_value_t = 2000)]
    count: usize,
    /// Our worker threads, and the peers' worker processes or parallel calls.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// How often each contender reads all files, after one warm-up.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The contenders, separated by commas.
    #[arg(long, default_values_t = ways().map(String::from), value_delimiter = ',')]
    ways: Vec<String>,
    /// A Python with the packages of data_requirements.txt, for the peers [default: a new
    /// environment].
    #[arg(long)]
    python: Option<PathBuf>,
    /// Print a line of JSON for each result.
    #[arg(long)]
    json: bool,
    /// Run as a contender: read `epoch` from the standard input.
    #[arg(long, hide = true)]
    serve: Option<String>,
}

/// Ours: batches of u8, which the device normalizes, and the same normalized on the host. Then
/// decoding all pixels of all files, and nothing else: by zune-jpeg and, with the feature
/// `turbojpeg`, by libjpeg-turbo. Then the peers.
const WAYS: [&str; 8] =
    ["u8", "f32", "zune-jpeg", "libjpeg-turbo", "pillow", "torchvision", "grain", "tfdata"];
const OUR_WAYS: [&str; 4] = ["u8", "f32", "zune-jpeg", "libjpeg-turbo"];

/// The ways that this program can run.
fn ways() -> impl Iterator<Item = &'static str> {
    WAYS.into_iter().filter(|way| cfg!(feature = "turbojpeg") || *way != "libjpeg-turbo")
}

const BATCH: usize = 64;

/// A contender's answer to `epoch`.
#[derive(Debug, Serialize, Deserialize)]
struct Epoch {
    images: usize,
    seconds: f64,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    if let Some(way) = &args.serve {
        let folder = args.folder.as_deref().ok_or("--serve requires --folder")?;
        return serve(way, folder, args.workers);
    }
    if let Some(unknown) = args.ways.iter().find(|way| !ways().any(|known| known == way.as_str())) {
        let known = ways().collect::<Vec<_>>().join(", ");
        let hint = if unknown == "libjpeg-turbo" {
            "; build bench with its feature `turbojpeg`"
        } else {
            ""
        };
        return Err(format!("there is no way `{unknown}`; the ways are {known}{hint}").into());
    }
    // Only the peers and the generation of files need Python.
    let python = match &args.python {
        Some(python) => Ok(python.clone()),
        None => python_with(
            "data_requirements.txt",
            "loader-venv",
            "PyTorch, TensorFlow and Grain, about 3 GB",
            13,
        ),
    };
    let folder = files(args, &python)?;
    let mut contenders = Vec::new();
    let mut missing = Vec::new();
    for way in &args.ways {
        let started =
            Contender::start(way, &folder, args.workers, &python).and_then(|mut contender| {
                contender.epoch()?;
                contender.rates.clear();
                Ok(contender)
            });
        match started {
            Ok(contender) => contenders.push(contender),
            Err(why) if OUR_WAYS.contains(&way.as_str()) => return Err(why),
            Err(why) => missing.push((way.clone(), why.to_string())),
        }
    }
    for round in 0..args.rounds {
        for contender in &mut contenders {
            contender.epoch()?;
            eprintln!(
                "round {}: {} {:.0} images/s",
                round + 1,
                contender.way,
                contender.rates[round]
            );
        }
    }
    for row in rows(args.workers, &contenders, &missing) {
        print_row(&row, args.json)?;
    }
    Ok(())
}

/// One row for each of our loaders, with all other contenders.
fn rows(workers: usize, contenders: &[Contender], missing: &[(String, String)]) -> Vec<Row> {
    let mut rows = Vec::new();
    for ours in
        contenders.iter().filter(|contender| ["u8", "f32"].contains(&contender.way.as_str()))
    {
        let name = format!("batches of {}", ours.way);
        let mut rate = Row::new("data", &name, "rate", "images/s")
            .ours(&ours.rates)
            .detail("workers", workers);
        let mut memory =
            Row::new("data", &name, "peak memory", "MB").ours(&[ours.peak as f64 / 1e6]);
        for other in contenders.iter().filter(|other| other.way != ours.way) {
            rate = rate.peer(&other.way, "", &other.rates);
            memory = memory.peer(&other.way, "", &[other.peak as f64 / 1e6]);
        }
        rate.missing.extend_from_slice(missing);
        rows.extend([rate, memory]);
    }
    rows
}

/// The folder of the files, which are generated if they do not exist.
fn files(args: &Args, python: &Python) -> Result<PathBuf, Box<dyn Error>> {
    let folder = match &args.folder {
        Some(folder) => folder.clone(),
        None => crate::peer::cache_folder()?.join(format!("jpegs-{}", args.count)),
    };
    if folder.exists() {
        return Ok(folder);
    }
    eprintln!("Making {} JPEGs, once, in {}", args.count, folder.display());
    // Under a temporary name until the folder is complete.
    let unfinished = folder.with_extension("making");
    let script = Path::new(PEERS).join("make_jpegs.py");
    let status = Command::new(python_path(python)?)
        .arg(script)
        .arg(&unfinished)
        .arg(args.count.to_string())
        .status()?;
    if !status.success() {
        return Err("make_jpegs.py failed; see its output above".into());
    }
    fs::rename(&unfinished, &folder)?;
    Ok(folder)
}

/// The peers' Python, or the error that prevents it.
type Python = Result<PathBuf, Box<dyn Error>>;

fn python_path(python: &Python) -> Result<&Path, String> {
    python.as_deref().map_err(|why| why.to_string())
}

/// The process of a contender.
struct Contender {
    way: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Images per second.
    rates: Vec<f64>,
    /// The peak memory of the process and its children, in bytes. Shared memory counts once.
    peak: u64,
}

impl Contender {
    fn start(
        way: &str,
        folder: &Path,
        workers: usize,
        python: &Python,
    ) -> Result<Contender, Box<dyn Error>> {
        let mut command = if OUR_WAYS.contains(&way) {
            let mut command = Command::new(env::current_exe()?);
            command.args(["data", "--serve", way]);
            command
        } else {
            let mut command = Command::new(python_path(python)?);
            command.arg(Path::new(PEERS).join("data_peer.py")).args(["--way", way]);
            command
        };
        command.arg("--folder").arg(folder).arg("--workers").arg(workers.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the process has no pipes".into());
        };
        let mut contender = Contender {
            way: way.to_owned(),
            child,
            input,
            output: BufReader::new(output),
            rates: Vec::new(),
            peak: 0,
        };
        contender.line()?;
        Ok(contender)
    }

    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err(format!("{} ended early; see its output above", self.way).into()),
            _ => Ok(line),
        }
    }

    fn epoch(&mut self) -> Result<(), Box<dyn Error>> {
        let done = AtomicBool::new(false);
        let peak = AtomicU64::new(self.peak);
        let pid = self.child.id();
        let line = thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    peak.fetch_max(memory(pid), Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(200));
                }
            });
            let line = writeln!(self.input, "epoch")
                .and_then(|()| self.input.flush())
                .map_err(Box::from)
                .and_then(|()| self.line());
            done.store(true, Ordering::Relaxed);
            line
        })?;
        self.peak = peak.into_inner();
        let epoch: Epoch = serde_json::from_str(&line)
            .map_err(|why| format!("{}: invalid output `{line}`: {why}", self.way))?;
        self.rates.push(epoch.images as f64 / epoch.seconds);
        Ok(())
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let _ = writeln!(self.input, "quit");
        let _ = self.input.flush();
        let _ = self.child.wait();
    }
}

/// The memory of a process and its descendants: proportional set sizes, in bytes. A process that
/// has ended has none.
fn memory(pid: u32) -> u64 {
    let own = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let pss = own.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib: u64 =
        pss.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0);
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let below: u64 = children
        .flat_map(|list| {
            list.split_whitespace().map(|pid| pid.parse().map_or(0, memory)).collect::<Vec<_>>()
        })
        .sum();
    (kib << 10) + below
}

/// Reads the epoch with this number.
type ReadEpoch = Box<dyn FnMut(u64) -> Result<Epoch, Box<dyn Error>>>;

/// Our side, in a separate process.
fn serve(way: &str, folder: &Path, workers: usize) -> Result<(), Box<dyn Error>> {
    let files = ImageFolder::open(folder)?;
    let mut epochs: ReadEpoch = match way {
        "zune-jpeg" => Box::new(move |_| decode(&files, workers, zune_jpeg)),
        #[cfg(feature = "turbojpeg")]
        "libjpeg-turbo" => Box::new(move |_| decode(&files, workers, libjpeg_turbo)),
        _ => {
            let pipeline = ImagePipeline::rgb().random_resized_crop(224).horizontal_flip(0.5);
            let pipeline = match way {
                "f32" => pipeline.normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
                _ => pipeline,
            };
            let loader = DataLoader::builder(files.decode(pipeline)?)
                .batch_size(BATCH)
                .shuffle(true)
                .drop_last(true)
                .num_workers(workers)
                .build()?;
            Box::new(move |epoch| batches(&loader, epoch))
        }
    };
    println!("{}", json!({"ready": way}));
    for (number, line) in std::io::stdin().lock().lines().enumerate() {
        if line?.trim() != "epoch" {
            break;
        }
        println!("{}", serde_json::to_string(&epochs(number as u64)?)?);
    }
    Ok(())
}

fn batches(loader: &DataLoader, epoch: u64) -> Result<Epoch, Box<dyn Error>> {
    let mut batches = loader.epoch(epoch);
    batches.next().ok_or("there are fewer files than samples in a batch")??;
    let start = Instant::now();
    let mut images = 0;
    for batch in batches {
        images += batch?.valid();
    }
    Ok(Epoch { images, seconds: start.elapsed().as_secs_f64() })
}

/// Decodes a file, and reuses its buffers for the next one.
type DecodeFile = Box<dyn FnMut(&[u8]) -> Result<(), String>>;

/// Decodes all pixels of all files on some threads, and discards them.
fn decode(
    files: &ImageFolder,
    workers: usize,
    decoder: fn() -> Result<DecodeFile, String>,
) -> Result<Epoch, Box<dyn Error>> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let start = Instant::now();
    let work = || -> Result<(), String> {
        let mut decode = decoder()?;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= files.len() {
                return Ok(());
            }
            let file = files.get(index).map_err(|why| why.to_string())?;
            decode(&file.bytes)?;
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..workers.max(1)).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?)
    })?;
    Ok(Epoch { images: files.len(), seconds: start.elapsed().as_secs_f64() })
}

fn zune_jpeg() -> Result<DecodeFile, String> {
    use zune_jpeg::{JpegDecoder, zune_core::bytestream::ZCursor};
    let mut pixels = Vec::new();
    Ok(Box::new(move |file| {
        let mut decoder = JpegDecoder::new(ZCursor::new(file));
        decoder.decode_headers().map_err(|why| why.to_string())?;
        let bytes = decoder.output_buffer_size().ok_or("the image does not fit into memory")?;
        pixels.resize(bytes.max(pixels.len()), 0);
        decoder.decode_into(&mut pixels).map_err(|why| why.to_string())
    }))
}

#[cfg(feature = "turbojpeg")]
fn libjpeg_turbo() -> Result<DecodeFile, String> {
    use fulmen_jpeg::{ColorSpace, Jpeg, Region};
    let mut pixels = Vec::new();
    Ok(Box::new(move |file| {
        let mut jpeg = Jpeg::open(file).map_err(|why| why.to_string())?;
        let all = Region { x: 0, y: 0, width: jpeg.width(), height: jpeg.height() };
        jpeg.decode(ColorSpace::Rgb, 8, all, &mut pixels).map(|_| ()).map_err(|why| why.to_string())
    }))
}
