//! Checks of cloud machines: the metadata server, the clock compared with it, the region of a
//! bucket, and the hosting services that can end a machine (Colab, Kaggle, Kubernetes, preemption).
//!
//! Out of scope: which process of a run this is (`fulmen-coordination`).

use std::time::{Duration, SystemTime};

use fulmen_coordination::{MetadataAnswer, MetadataServer};
use serde::Deserialize;

use super::{Finding, Machine};
use crate::http_client;

/// How far a clock may be off, in seconds. Certificates and tokens tolerate larger errors.
const MAX_CLOCK_ERROR: u64 = 30;

/// The names queried from the metadata server.
const METADATA_NAMES: [&str; 4] =
    ["zone", "machine-type", "attributes/accelerator-type", "scheduling/preemptible"];

/// The answers of the metadata server.
#[derive(Debug)]
pub(super) struct Metadata {
    server: MetadataServer,
    /// The answers, one for each of [`METADATA_NAMES`].
    answers: Vec<Option<MetadataAnswer>>,
}

impl Metadata {
    pub(super) fn ask(machine: &Machine) -> Option<Metadata> {
        let server = MetadataServer::find(|name| machine.variable(name), &machine.root)?;
        let answers = server.ask(&METADATA_NAMES, machine.timeout).unwrap_or_default();
        Some(Self { server, answers })
    }

    fn get(&self, name: &str) -> Option<&str> {
        let index = METADATA_NAMES.iter().position(|known| *known == name)?;
        Some(self.answers.get(index)?.as_ref()?.text.trim())
    }

    fn answered(&self) -> bool {
        self.answers.iter().any(Option::is_some)
    }

    /// The accelerator type of a TPU VM, such as `v5litepod-8`.
    pub(super) fn accelerator_type(&self) -> Option<&str> {
        self.get("attributes/accelerator-type")
    }

    /// The zone, such as `us-central1-a` from `projects/123/zones/us-central1-a`.
    fn zone(&self) -> Option<&str> {
        self.get("zone")?.rsplit('/').next()
    }

    /// The access token of the machine's service account. It is neither stored nor shown.
    fn token(&self, timeout: Duration) -> Option<String> {
        #[derive(Deserialize)]
        struct Token {
            access_token: String,
        }
        let answer =
            self.server.ask(&["service-accounts/default/token"], timeout).ok()?.pop()??;
        serde_json::from_str(&answer.text).ok().map(|token: Token| token.access_token)
    }

    fn date(&self) -> Option<SystemTime> {
        let dates = self.answers.iter().flatten().filter_map(|answer| answer.date.as_deref());
        dates.filter_map(|date| httpdate::parse_http_date(date).ok()).next()
    }
}

pub(super) fn metadata(machine: &Machine) -> Vec<Finding> {
    let Some(metadata) = machine.metadata() else {
        return vec![Finding::ok("this machine has none, or it is not queried")];
    };
    let address = metadata.server.address();
    if !metadata.answered() {
        return vec![Finding::error(
            format!(
                "{address} does not answer within {} s; libtpu queries it for minutes when it starts",
                machine.timeout.as_secs_f64()
            ),
            "let this machine or container reach it (docker's `--net=host`, NO_PROXY); where there is none, set \
             TPU_SKIP_MDS_QUERY=1 and FULMEN_OFFLINE=1",
        )];
    }
    let machine_type = metadata.get("machine-type").and_then(|it| it.rsplit('/').next());
    let details = [machine_type, metadata.accelerator_type()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ");
    vec![Finding::ok(format!(
        "{address} answers: {} in {}",
        details,
        metadata.zone().unwrap_or("an unknown zone")
    ))]
}

pub(super) fn clock(machine: &Machine) -> Vec<Finding> {
    let now = httpdate::fmt_http_date(machine.now);
    let remedy = "`sudo systemctl restart chrony` or `systemd-timesyncd` sets it; stores refuse requests of machines whose \
                  clocks are wrong";
    // A clock that shows an earlier time, before this program was written, is wrong.
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
    let difference = machine.metadata().and_then(Metadata::date).map(|date| {
        let difference = machine.now.duration_since(date).unwrap_or_else(|error| error.duration());
        difference.as_secs()
    });
    vec![match difference {
        Some(seconds) if seconds > MAX_CLOCK_ERROR => Finding::error(
            format!("it says {now}, {seconds} s off from the metadata server"),
            remedy,
        ),
        Some(_) => Finding::ok(format!("it says {now}, and agrees with the metadata server")),
        None if machine.now < past => Finding::error(format!("it says {now}"), remedy),
        None => Finding::ok(format!("it says {now}; there is no other clock to compare it with")),
    }]
}

/// The location of a bucket, or why it is unknown.
#[derive(Debug)]
pub(super) struct BucketRegion {
    bucket: String,
    location: Result<BucketLocation, Finding>,
}

/// Cloud Storage's description of a bucket.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BucketLocation {
    /// The location, such as `US-CENTRAL1`, `US` or `NAM4`.
    location: String,
    #[serde(default)]
    custom_placement_config: Regions,
}

/// The two regions of a configurable dual-region bucket.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Regions {
    #[serde(default)]
    data_locations: Vec<String>,
}

impl BucketRegion {
    /// `None` if no bucket is named.
    pub(super) fn ask(machine: &Machine) -> Option<BucketRegion> {
        let variables = ["FULMEN_CHECKPOINT_DIR", "FULMEN_DEFAULT_ROOT_DIR"]
            .into_iter()
            .filter_map(|name| machine.text(name));
        let location = machine
            .bucket
            .clone()
            .into_iter()
            .chain(variables)
            .find(|location| location.starts_with("gs://"))?;
        let bucket = location["gs://".len()..].split('/').next().unwrap_or_default().to_owned();
        let location = Self::query(machine, &bucket);
        Some(Self { bucket, location })
    }

    fn query(machine: &Machine, bucket: &str) -> Result<BucketLocation, Finding> {
        let is_name = |letter: char| {
            letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-_.".contains(letter)
        };
        if bucket.is_empty() || !bucket.chars().all(is_name) {
            return Err(Finding::error(
                format!("{bucket:?} is not a valid bucket name"),
                "write gs://NAME/FOLDER, with a name of small letters, digits, `-`, `_` and `.`",
            ));
        }
        // On other machines there is no region to compare with.
        let metadata = machine.metadata().filter(|metadata| metadata.zone().is_some());
        let Some(metadata) = metadata else {
            return Err(Finding::ok(format!("gs://{bucket}, and this machine has no zone")));
        };
        let host = machine
            .text("GOOGLE_BASE_URL")
            .unwrap_or_else(|| "https://storage.googleapis.com".to_owned());
        let fields = "location,customPlacementConfig";
        let request = || {
            let client = http_client(machine.timeout)?;
            let mut get = client.get(format!("{host}/storage/v1/b/{bucket}?fields={fields}"));
            if let Some(token) = metadata.token(machine.timeout) {
                get = get.bearer_auth(token);
            }
            let answer = get.send()?;
            Ok((answer.status().as_u16(), answer.text()?))
        };
        let unknown = |reason: String| {
            Finding::warning(
                format!("cannot query the location of gs://{bucket}: {reason}"),
                format!(
                    "`gcloud storage buckets describe gs://{bucket} --format='value(location)'` shows its location"
                ),
            )
        };
        match request() {
            Ok((200, text)) => {
                serde_json::from_str(&text).map_err(|error| unknown(error.to_string()))
            }
            Ok((404, _)) => Err(Finding::error(
                format!("there is no bucket gs://{bucket}"),
                "correct its name, or create it in the region of this machine: `gcloud storage buckets create`",
            )),
            Ok((401 | 403, _)) => Err(Finding::warning(
                format!("this machine's account may not read the metadata of gs://{bucket}"),
                "if it cannot read and write there either, give it the role roles/storage.objectUser, and the machine the scope \
                 cloud-platform",
            )),
            Ok((status, _)) => Err(unknown(format!("HTTP {status}"))),
            // The token is a header, so messages cannot contain it.
            Err::<_, reqwest::Error>(error) => Err(unknown(error.without_url().to_string())),
        }
    }
}

pub(super) fn bucket(machine: &Machine) -> Vec<Finding> {
    let Some(BucketRegion { bucket, location }) = machine.bucket_region() else {
        return vec![Finding::ok(
            "no bucket is named (`--bucket gs://NAME`, FULMEN_CHECKPOINT_DIR)",
        )];
    };
    let BucketLocation { location, custom_placement_config } = match location {
        Ok(location) => location,
        Err(finding) => return vec![finding.clone()],
    };
    let zone = machine.metadata().and_then(Metadata::zone).unwrap_or_default();
    // `us-central1-a` is in `us-central1`.
    let region = zone.rsplit_once('-').map_or(zone, |(region, _)| region);
    let regions = match (&location.to_lowercase()[..], &custom_placement_config.data_locations[..])
    {
        ("nam4", _) => vec!["us-central1".to_owned(), "us-east1".to_owned()],
        ("eur4", _) => vec!["europe-north1".to_owned(), "europe-west4".to_owned()],
        ("asia1", _) => vec!["asia-northeast1".to_owned(), "asia-northeast2".to_owned()],
        (location, []) => vec![location.to_owned()],
        (_, regions) => regions.iter().map(|region| region.to_lowercase()).collect(),
    };
    vec![if regions.iter().any(|bucket_region| bucket_region == region) {
        Finding::ok(format!(
            "gs://{bucket} is in {}, and this machine is in {zone}",
            regions.join(" and ")
        ))
    } else {
        Finding::warning(
            format!(
                "gs://{bucket} is in {location}, and this machine is in {zone}: reads are slower, and traffic may cost money"
            ),
            format!(
                "keep data and checkpoints in {region}: `gcloud storage buckets create gs://NAME --location={region}`"
            ),
        )
    }]
}

/// Reports the hosting service of this machine, and how long a machine lasts there.
pub(super) fn hosting(machine: &Machine) -> Vec<Finding> {
    let is_set = |name: &str| machine.variable(name).is_some();
    let resume = "write checkpoints to a store that outlives it (`--checkpoint-dir gs://…`), and start with `--resume auto`";
    let mut findings = Vec::new();
    if is_set("COLAB_RELEASE_TAG") || is_set("COLAB_GPU") {
        findings.push(Finding::note(
            "Colab: a runtime lasts 12 hours at most, less when it is idle, and its disk is deleted with it",
            format!("{resume}; a mounted Drive works too"),
        ));
    }
    if is_set("KAGGLE_KERNEL_RUN_TYPE") {
        findings.push(Finding::note(
            "Kaggle: a session with a TPU lasts 9 hours, 20 a week; /kaggle/working keeps 20 GB, other folders nothing",
            format!("{resume}; `--default-root-dir /kaggle/working/runs` works too"),
        ));
    }
    if is_set("KUBERNETES_SERVICE_HOST") {
        findings.push(Finding::note(
            "Kubernetes: a pod may be evicted, with 30 s to save unless terminationGracePeriodSeconds says otherwise",
            format!("`--grace` must be shorter than that; {resume}"),
        ));
    }
    if let Some(metadata) = machine.metadata().filter(|metadata| metadata.answered()) {
        findings.push(match metadata.get("scheduling/preemptible") {
            Some("TRUE") => Finding::note(
                "Google Cloud, preemptible: this machine may be taken away at any time, with 30 s to save",
                format!("{resume}; restart a program that exits with code 75"),
            ),
            _ => Finding::ok("Google Cloud"),
        });
    }
    if findings.is_empty() {
        findings.push(Finding::ok("this machine is not one of them"));
    }
    findings
}
