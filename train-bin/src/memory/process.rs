//! Memory of the process and of the machine.

/// Bytes available to the process, within the limit of its cgroup; `None` except on Linux.
pub fn available_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let free = 1024 * line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    let of_group = |file: &str| -> Option<u64> {
        std::fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse().ok()
    };
    let in_group = of_group("memory.max")
        .map(|limit| limit.saturating_sub(of_group("memory.current").unwrap_or(0)));
    Some(in_group.map_or(free, |in_group| free.min(in_group)))
}

/// Peak resident set so far in MiB; `None` except on Linux.
pub fn peak_memory_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}
