//! The published data of well-known GPUs, to compare a step with: peaks, memory and prices. Each row
//! names its sources. Nothing here was measured.
//!
//! In November 2026, each peak was compared with the page that its row names. These pages quote
//! NVIDIA's documents, which were not read themselves. A price without a dated source was removed.

use crate::{Error, Result};

/// A GPU as it is sold. Peaks are dense: none counts zeros that a structured sparsity leaves out.
#[derive(Debug, PartialEq)]
pub struct Gpu {
    /// The name, as `--against` takes it.
    pub name: &'static str,
    /// Other names in use.
    pub aliases: &'static [&'static str],
    /// The whole name.
    pub full_name: &'static str,
    /// Peak FLOP/s of the tensor cores for products of 16 bits that are summed in f32.
    pub half_flops: f64,
    /// The 16-bit type of that peak: `bf16`, or `f16` where the GPU has no `bf16`.
    pub half_type: &'static str,
    /// Peak FLOP/s in `f32`, without tensor cores.
    pub f32_flops: f64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes per second between the memory and the chip.
    pub memory_bandwidth: f64,
    /// The source of the numbers above.
    pub source: &'static str,
    /// What it costs to rent; `None` if no public on-demand price is known.
    pub price: Option<GpuPrice>,
}

/// The on-demand price of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuPrice {
    /// US dollars per hour for one GPU.
    pub usd_per_hour: f64,
    /// The month of the price.
    pub date: &'static str,
    /// What is rented where, and who quotes the price.
    pub source: &'static str,
}

const TERA: f64 = 1e12;
const GIGA: f64 = 1e9;
const GIB: u64 = 1 << 30;

const fn price(usd_per_hour: f64, date: &'static str, source: &'static str) -> Option<GpuPrice> {
    Some(GpuPrice { usd_per_hour, date, source })
}

/// The GPUs, the data center's first, and each group in the order of their generations.
pub(crate) static GPUS: &[Gpu] = &[
    Gpu {
        name: "v100",
        aliases: &["v100-16gb"],
        full_name: "NVIDIA V100 SXM2 16 GB",
        half_flops: 125.0 * TERA,
        half_type: "f16",
        f32_flops: 15.7 * TERA,
        memory_bytes: 16 * GIB,
        memory_bandwidth: 900.0 * GIGA,
        source: "NVIDIA V100 data sheet; 125 TFLOP/s: developer.nvidia.com/programming-tensor-cores-cuda-9-0",
        price: price(
            0.79,
            "2026-09",
            "Lambda, with 8 GPUs, lambda.ai/instances as read on 2026-09-20",
        ),
    },
    Gpu {
        name: "t4",
        aliases: &[],
        full_name: "NVIDIA T4 16 GB",
        half_flops: 65.0 * TERA,
        half_type: "f16",
        f32_flops: 8.1 * TERA,
        memory_bytes: 16 * GIB,
        memory_bandwidth: 320.0 * GIGA,
        source: "NVIDIA T4 data sheet, as sysrqmts.com quotes it",
        price: None,
    },
    Gpu {
        name: "a100",
        aliases: &["a100-40gb"],
        full_name: "NVIDIA A100 SXM4 40 GB",
        half_flops: 312.0 * TERA,
        half_type: "bf16",
        f32_flops: 19.5 * TERA,
        memory_bytes: 40 * GIB,
        memory_bandwidth: 1555.0 * GIGA,
        source: "NVIDIA A100 data sheet (1758950-r4), as glennklockwood.com quotes it",
        price: price(
            3.67,
            "2025-03",
            "Google Cloud, a2-highgpu-1g in us-central1, from its billing catalog of 2025-03-06",
        ),
    },
    Gpu {
        name: "a100-80gb",
        aliases: &[],
        full_name: "NVIDIA A100 SXM4 80 GB",
        half_flops: 312.0 * TERA,
        half_type: "bf16",
        f32_flops: 19.5 * TERA,
        memory_bytes: 80 * GIB,
        memory_bandwidth: 2039.0 * GIGA,
        source: "NVIDIA A100 data sheet (1758950-r4), as glennklockwood.com quotes it",
        price: price(
            5.07,
            "2025-03",
            "Google Cloud, a2-ultragpu-1g in us-central1, from its billing catalog of 2025-03-06",
        ),
    },
    Gpu {
        name: "l4",
        aliases: &[],
        full_name: "NVIDIA L4 24 GB",
        half_flops: 121.0 * TERA,
        half_type: "bf16",
        f32_flops: 30.3 * TERA,
        memory_bytes: 24 * GIB,
        memory_bandwidth: 300.0 * GIGA,
        source: "NVIDIA L4 data sheet (half of the peak with sparsity), as grokipedia.com quotes it",
        price: price(
            0.71,
            "2025-03",
            "Google Cloud, g2-standard-4 in us-central1, from its billing catalog of 2025-03-06",
        ),
    },
    Gpu {
        name: "l40s",
        aliases: &[],
        full_name: "NVIDIA L40S 48 GB",
        half_flops: 362.05 * TERA,
        half_type: "bf16",
        f32_flops: 91.6 * TERA,
        memory_bytes: 48 * GIB,
        memory_bandwidth: 864.0 * GIGA,
        source: "NVIDIA L40S data sheet, as mullet.se quotes it",
        price: price(
            1.09,
            "2026-09",
            "RunPod Secure Cloud, runpod.io/pricing as read on 2026-09-25",
        ),
    },
    Gpu {
        name: "h100",
        aliases: &["h100-80gb", "h100-sxm"],
        full_name: "NVIDIA H100 SXM5 80 GB",
        half_flops: 989.4 * TERA,
        half_type: "bf16",
        f32_flops: 67.0 * TERA,
        memory_bytes: 80 * GIB,
        memory_bandwidth: 3350.0 * GIGA,
        source: "NVIDIA H100 data sheet (half of the peak with sparsity), as glennklockwood.com quotes it",
        price: price(
            10.98,
            "2026-09",
            "Google Cloud, a3-highgpu-1g in us-central1, from its billing catalog of 2026-09-26",
        ),
    },
    Gpu {
        name: "h200",
        aliases: &["h200-sxm"],
        full_name: "NVIDIA H200 SXM 141 GB",
        half_flops: 989.4 * TERA,
        half_type: "bf16",
        f32_flops: 67.0 * TERA,
        memory_bytes: 141 * GIB,
        memory_bandwidth: 4800.0 * GIGA,
        source: "NVIDIA H200 data sheet (half of the peak with sparsity), as itkb.uw.cz quotes it",
        price: price(
            10.44,
            "2026-10",
            "Google Cloud, an eighth of a3-ultragpu-8g in us-central1, from its billing catalog of 2026-10-13",
        ),
    },
    Gpu {
        name: "b200",
        aliases: &[],
        full_name: "NVIDIA B200 SXM 180 GB",
        half_flops: 2250.0 * TERA,
        half_type: "bf16",
        f32_flops: 75.0 * TERA,
        memory_bytes: 180 * GIB,
        memory_bandwidth: 7700.0 * GIGA,
        source: "NVIDIA HGX B200 data sheet (half of the peak with sparsity), as zdszero.github.io quotes it",
        price: price(
            6.79,
            "2026-09",
            "RunPod Secure Cloud, runpod.io/pricing as read on 2026-09-25",
        ),
    },
    Gpu {
        name: "2080ti",
        aliases: &["rtx2080ti"],
        full_name: "NVIDIA GeForce RTX 2080 Ti 11 GB",
        half_flops: 53.8 * TERA,
        half_type: "f16",
        f32_flops: 13.4 * TERA,
        memory_bytes: 11 * GIB,
        memory_bandwidth: 616.0 * GIGA,
        source: "NVIDIA Turing white paper; f32 and memory as gpu.spicedreamphone.com quotes them",
        price: None,
    },
    Gpu {
        name: "3090",
        aliases: &["rtx3090"],
        full_name: "NVIDIA GeForce RTX 3090 24 GB",
        half_flops: 71.0 * TERA,
        half_type: "bf16",
        f32_flops: 35.6 * TERA,
        memory_bytes: 24 * GIB,
        memory_bandwidth: 936.0 * GIGA,
        source: "NVIDIA Ampere GA102 white paper; memory as gigagpu.com quotes it",
        price: price(
            0.18,
            "2026-09",
            "OpenRelay, openrelay.inc/gpu-pricing-calculator as read on 2026-09-20",
        ),
    },
    Gpu {
        name: "4090",
        aliases: &["rtx4090"],
        full_name: "NVIDIA GeForce RTX 4090 24 GB",
        half_flops: 165.2 * TERA,
        half_type: "bf16",
        f32_flops: 82.6 * TERA,
        memory_bytes: 24 * GIB,
        memory_bandwidth: 1008.0 * GIGA,
        source: "NVIDIA Ada white paper, as hmc-tech.com quotes it",
        price: price(
            0.74,
            "2026-09",
            "RunPod Secure Cloud, runpod.io/pricing as read on 2026-09-25",
        ),
    },
    Gpu {
        name: "5090",
        aliases: &["rtx5090"],
        full_name: "NVIDIA GeForce RTX 5090 32 GB",
        half_flops: 209.5 * TERA,
        half_type: "bf16",
        f32_flops: 104.8 * TERA,
        memory_bytes: 32 * GIB,
        memory_bandwidth: 1792.0 * GIGA,
        source: "NVIDIA RTX Blackwell white paper (half of the peak with f16 sums), as spheron.network quotes it",
        price: None,
    },
];

impl Gpu {
    /// All GPUs that a step can be compared with.
    pub fn all() -> &'static [Gpu] {
        GPUS
    }

    /// The GPU with this name or alias, ignoring case.
    ///
    /// ```
    /// use fulmen_preflight::Gpu;
    ///
    /// assert_eq!(Gpu::find("RTX3090")?.full_name, "NVIDIA GeForce RTX 3090 24 GB");
    /// assert!(Gpu::find("voodoo2").unwrap_err().to_string().contains("there are v100, t4, a100"));
    /// # Ok::<(), fulmen_preflight::Error>(())
    /// ```
    ///
    /// # Errors
    /// No GPU has this name; the error lists the names.
    pub fn find(name: &str) -> Result<&'static Gpu> {
        let matches = |candidate: &&str| candidate.eq_ignore_ascii_case(name.trim());
        let found = GPUS.iter().find(|gpu| matches(&gpu.name) || gpu.aliases.iter().any(matches));
        found.ok_or_else(|| {
            let names: Vec<&str> = GPUS.iter().map(|gpu| gpu.name).collect();
            Error::usage(format!("there is no GPU `{name}`; there are {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_found_once_and_unknown_names_are_refused_with_the_list() {
        assert_eq!(Gpu::find("H100").unwrap().name, "h100");
        assert_eq!(Gpu::find(" rtx4090").unwrap().name, "4090");
        let names: Vec<&str> =
            GPUS.iter().flat_map(|gpu| gpu.aliases.iter().copied().chain([gpu.name])).collect();
        assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len());
        let error = Gpu::find("h1000").unwrap_err();
        assert!(error.is_usage(), "{error}");
        let text = error.to_string();
        assert!(text.contains("`h1000`"), "{text}");
        assert!(GPUS.iter().all(|gpu| text.contains(gpu.name)), "{text}");
    }

    #[test]
    fn the_books_table_has_the_numbers() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/preflight.md");
        let book = std::fs::read_to_string(path).unwrap();
        for gpu in GPUS {
            let half = gpu.half_flops / TERA;
            let half =
                if gpu.half_type == "f16" { format!("{half} (f16)") } else { half.to_string() };
            let price = gpu.price.map_or("unknown".to_owned(), |price| {
                format!("{} ({})", price.usd_per_hour, price.date)
            });
            let cells = format!(
                " | {half} | {} | {} GiB | {} | {price} |",
                gpu.f32_flops / TERA,
                gpu.memory_bytes / GIB,
                gpu.memory_bandwidth / GIGA
            );
            let name = format!("| `{}`", gpu.name);
            let row = book.lines().find(|line| line.starts_with(&name));
            assert!(row.is_some_and(|row| row.ends_with(&cells)), "{name} {cells}: {row:?}");
        }
    }

    #[test]
    fn each_row_is_plausible_and_names_its_sources() {
        for gpu in GPUS {
            assert!(gpu.half_flops > gpu.f32_flops, "{}", gpu.name);
            assert!(!gpu.source.is_empty() && ["bf16", "f16"].contains(&gpu.half_type));
            if let Some(price) = gpu.price {
                assert!(price.usd_per_hour > 0.0 && price.date.starts_with("202"), "{}", gpu.name);
                assert!(!price.source.is_empty());
            }
        }
    }
}
