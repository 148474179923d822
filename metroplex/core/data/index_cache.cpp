#include "data/index_cache.h"

#include <chrono>
#include <sstream>
#include <thread>

#include <unistd.h>

#include "base/error.h"
#include "files/checksum.h"

namespace metroplex::data {

namespace {

constexpr std::string_view kArraysLine = "-- arrays: name, checksum --\n";

files::NpyArray in_memory(const std::string& name, std::shared_ptr<const std::string> text) {
  files::Bytes bytes{reinterpret_cast<const std::byte*>(text->data()), text->size(), text};
  return files::parse_npy(std::move(bytes), name);
}

std::string checksum_text(const files::Bytes& bytes) {
  return files::to_hex(files::checksum(bytes.data, bytes.size));
}

// Unique per concurrent writer, so that two ranks never share a temporary file.
std::string writer_suffix() {
  std::ostringstream out;
  out << ".part-" << ::getpid() << "-" << std::this_thread::get_id();
  return out.str();
}

void write_whole(files::FileSystem& disk, const std::string& path, std::string_view text) {
  const std::string part = path + writer_suffix();
  try {
    const auto file = disk.create(part);
    file->write(text.data(), text.size());
    file->sync();
    file->close();
    disk.rename(part, path);
  } catch (const base::Error&) {
    if (disk.exists(part)) disk.remove(part);
    throw;
  }
}

// Returns nullptr if the directory is not writable: then nothing can be cached and no lock is needed.
std::unique_ptr<files::FileLock> wait_for_lock(files::FileSystem& disk, const std::string& path) {
  for (;;) {
    try {
      if (auto lock = disk.try_lock(path)) return lock;
    } catch (const base::Error&) { return nullptr; }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

bool IndexCache::load(const std::string& base, const std::string& description, Entry& entry) const {
  const std::string path = base + "-description.txt";
  entry.arrays_.clear();
  try {
    if (!disk_.exists(path)) return false;
    const std::string text = disk_.read(path), head = description + std::string(kArraysLine);
    if (text.substr(0, head.size()) != head) return false;
    std::istringstream lines(text.substr(head.size()));
    std::string name, sum;
    while (lines >> name && name != "end" && lines >> sum) {
      const std::string file = base + "-" + name + ".npy";
      const files::Bytes bytes = disk_.map(file);
      if (checksum_text(bytes) != sum) return false;
      entry.arrays_.emplace(name, files::parse_npy(bytes, file));
    }
    return name == "end";
  } catch (const base::Error&) { return false; }
}

void IndexCache::store(const std::string& base, const std::string& description, const IndexArrays& arrays) const {
  std::string text = description + std::string(kArraysLine);
  for (const auto& [name, bytes] : arrays.texts()) {
    write_whole(disk_, base + "-" + name + ".npy", *bytes);
    text += name + " " + files::to_hex(files::checksum(bytes->data(), bytes->size())) + "\n";
  }
  write_whole(disk_, base + "-description.txt", text + "end\n");
}

IndexCache::Entry IndexCache::get(const std::string& name, const std::string& description,
                                  const std::function<IndexArrays()>& build) const {
  Entry entry;
  const auto keep_in_memory = [&entry](const IndexArrays& arrays) {
    entry.built = true;
    entry.arrays_.clear();
    for (const auto& [key, text] : arrays.texts()) entry.arrays_.emplace(key, in_memory(key, text));
  };
  if (directory_.empty()) {
    keep_in_memory(build());
    return entry;
  }
  const std::string hash = files::to_hex(files::checksum(description.data(), description.size()));
  const std::string base = files::join_path(directory_, hash + "-" + name);
  if (load(base, description, entry)) return entry;

  std::unique_ptr<files::FileLock> lock;
  try {
    disk_.make_directories(directory_);
    lock = wait_for_lock(disk_, base + ".lock");
  } catch (const base::Error&) {  // not writable: the arrays stay in memory
  }
  if (lock && load(base, description, entry)) return entry;
  const IndexArrays arrays = build();
  keep_in_memory(arrays);
  if (!lock) return entry;
  try {
    store(base, description, arrays);
    Entry stored;
    if (load(base, description, stored)) {
      stored.built = true;
      return stored;  // ranks share mapped pages, but not heap memory
    }
  } catch (const base::Error&) {}
  return entry;
}

}  // namespace metroplex::data
