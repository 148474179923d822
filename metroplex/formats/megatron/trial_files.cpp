#include "megatron/trial_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/error.h"
#include "megatron/trial_memory.h"

namespace metroplex::megatron {
namespace {

bool is_below(const std::string& path, const std::string& folder) {
  return path.size() > folder.size() && path.compare(0, folder.size(), folder) == 0 && path[folder.size()] == '/';
}

bool write_all(int fd, const std::string& text) {
  return ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Copies the real file at `path` to `to`. Writes a mark instead if the file is too long or unreadable.
void copy_real_file(const std::string& path, int to) {
  struct stat real {};
  // Pipes and devices are not opened, because reading consumes data of their writer.
  const bool regular = stat(path.c_str(), &real) == 0 && S_ISREG(real.st_mode);
  const Descriptor from(regular ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1);
  bool copied = from.get() >= 0 && static_cast<size_t>(real.st_size) < kMaxFileBytes;
  std::array<char, 8192> bytes{};
  for (ssize_t got = 1; copied && got > 0;) {
    got = ::read(from.get(), bytes.data(), bytes.size());
    copied = got >= 0 && write_all(to, {bytes.data(), static_cast<size_t>(got)});
  }
  if (copied) return;
  [[maybe_unused]] const int cut = ftruncate(to, 0);
  write_all(to, base::concat(kMark, std::filesystem::path(path).filename().string(), "@@@\n"));
}

}  // namespace

bool TrialFiles::is_hidden(const std::string& path) const {
  for (const std::string& folder : emptied_folders_) {
    if (is_below(path, folder)) return true;
  }
  return false;
}

// Adds an entry for a file that the trial has not written yet.
int TrialFiles::add(const std::string& path, int flags) {
  struct stat real {};
  const bool exists = !files_.contains(path) && !is_hidden(path) && stat(path.c_str(), &real) == 0;
  if (exists && S_ISDIR(real.st_mode)) return EISDIR;
  if (exists && (flags & O_EXCL) != 0) return EEXIST;
  Descriptor memory(memfd_create("file of a launch script", MFD_CLOEXEC));
  if (memory.get() < 0) return errno;
  if (exists && (flags & O_TRUNC) == 0) copy_real_file(path, memory.get());
  files_.insert_or_assign(path, std::move(memory));
  return 0;
}

int TrialFiles::open(const std::string& path, int flags, Descriptor& file) {
  const bool changes = (flags & (O_ACCMODE | O_CREAT | O_TRUNC)) != 0;
  const auto found = files_.find(path);
  const bool known = found != files_.end() && found->second.get() >= 0;
  if (!known && !changes) return found != files_.end() || is_hidden(path) ? ENOENT : kNotOurs;
  if (known && (flags & O_CREAT) != 0 && (flags & O_EXCL) != 0) return EEXIST;
  if (!known) {
    const int error = add(path, flags);
    if (error != 0) return error;
  }
  const int kept = (flags & (O_ACCMODE | O_APPEND)) | (changes ? flags & O_TRUNC : 0);
  file = Descriptor(::open(base::concat("/proc/self/fd/", files_.at(path).get()).c_str(), kept | O_CLOEXEC));
  return file.get() < 0 ? errno : 0;
}

int TrialFiles::read_status(const std::string& path, struct stat& out) const {
  const auto found = files_.find(path);
  if (found == files_.end()) return is_hidden(path) ? ENOENT : kNotOurs;
  if (found->second.get() < 0) return ENOENT;
  if (fstat(found->second.get(), &out) != 0) return errno;
  out.st_mode = S_IFREG | 0644;
  out.st_nlink = 1;
  return 0;
}

void TrialFiles::remove(const std::string& path) {
  struct stat real {};
  if (!files_.contains(path) && stat(path.c_str(), &real) == 0 && S_ISDIR(real.st_mode)) {
    std::erase_if(files_, [&](const auto& file) { return is_below(file.first, path); });
    emptied_folders_.insert(path);
    return;
  }
  files_.insert_or_assign(path, Descriptor());
}

size_t TrialFiles::bytes() const {
  size_t sum = 0;
  for (const auto& [path, memory] : files_) {
    struct stat status {};
    if (memory.get() >= 0 && fstat(memory.get(), &status) == 0) sum += static_cast<size_t>(status.st_blocks) * 512;
  }
  return sum;
}

namespace {

std::filesystem::path absolute_path(pid_t pid, int folder, const std::string& path) {
  const std::filesystem::path whole = path;
  if (whole.is_absolute()) return whole;
  return read_process_link(pid, folder == AT_FDCWD ? "cwd" : base::concat("fd/", folder)) / whole;
}

// Replaces names that refer to another folder in our own process.
std::string translate_own_names(pid_t pid, const std::filesystem::path& path) {
  constexpr std::pair<const char*, const char*> kNames[] = {{"/dev/stdin", "/fd/0"},  {"/dev/stdout", "/fd/1"},
                                                            {"/dev/stderr", "/fd/2"}, {"/dev/fd", "/fd"},
                                                            {"/proc/self", ""},       {"/proc/thread-self", ""}};
  const std::string plain = path.lexically_normal().string();
  for (const auto& [name, target] : kNames) {
    if (plain == name || is_below(plain, name))
      return base::concat("/proc/", pid, target, plain.substr(std::string(name).size()));
  }
  return path.string();
}

bool holds_open(pid_t pid, const struct stat& file) {
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(base::concat("/proc/", pid, "/fd"), code)) {
    struct stat held {};
    if (stat(entry.path().c_str(), &held) == 0 && held.st_dev == file.st_dev && held.st_ino == file.st_ino)
      return true;
  }
  return false;
}

}  // namespace

bool is_foreign_stream(pid_t pid, int folder, const std::string& path) {
  struct stat file {};
  if (path.empty() || stat(translate_own_names(pid, absolute_path(pid, folder, path)).c_str(), &file) != 0)
    return false;
  if (S_ISFIFO(file.st_mode)) return !holds_open(pid, file);
  if (!S_ISCHR(file.st_mode)) return S_ISBLK(file.st_mode);
  // null, zero, full, random and urandom
  const dev_t harmless[] = {makedev(1, 3), makedev(1, 5), makedev(1, 7), makedev(1, 8), makedev(1, 9)};
  return std::find(std::begin(harmless), std::end(harmless), file.st_rdev) == std::end(harmless);
}

std::string resolve_path(pid_t pid, int folder, const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) return "";
  const fs::path whole = absolute_path(pid, folder, path);
  std::string plain = whole.lexically_normal().string();
  // /proc/self is a different folder in our own process.
  if (is_below(plain, "/proc") || is_below(plain, "/dev")) return plain;
  std::error_code code;
  const fs::path real = fs::weakly_canonical(whole, code);
  if (!code) plain = real.string();
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  return plain;
}

}  // namespace metroplex::megatron
