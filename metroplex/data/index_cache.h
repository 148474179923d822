// A cache of index files, which are expensive to build, beside the data and shared by all ranks. An entry is named by
// the hash of a description of everything it depends on: HASH-NAME-ARRAY.npy for each array, and
// HASH-NAME-description.txt, written last, with the checksum of each array. One rank builds under a lock and the
// others wait; where locks do not work each rank builds, which atomic renames make harmless. An incomplete or altered
// entry is rebuilt; if nothing can be written the arrays stay in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "files/file_system.h"
#include "files/npy.h"

namespace metroplex::data {

// Named arrays as .npy bytes.
class IndexArrays {
 public:
  template <class T>
  void add(const std::string& name, std::vector<T> values, std::vector<int64_t> shape = {}) {
    if (shape.empty()) shape = {static_cast<int64_t>(values.size())};
    texts_[name] = std::make_shared<const std::string>(files::npy_text<T>(values, shape));
  }
  const std::map<std::string, std::shared_ptr<const std::string>>& texts() const { return texts_; }

 private:
  std::map<std::string, std::shared_ptr<const std::string>> texts_;
};

class IndexCache {
 public:
  // An empty directory keeps everything in memory. The disk must outlive the cache.
  IndexCache(files::FileSystem& disk, std::string directory) : disk_(disk), directory_(std::move(directory)) {}

  class Entry {
   public:
    // Valid as long as the entry. Throws base::Error when there is no such array of this type.
    template <class T>
    std::span<const T> array(const std::string& name) const {
      return arrays_.at(name).as<T>();
    }
    bool built = false;  // by this call, not found in the cache

   private:
    friend class IndexCache;
    std::map<std::string, files::NpyArray> arrays_;
  };

  // Finds the arrays of `description`, or calls `build` and stores the result. Safe for concurrent threads and
  // processes.
  Entry get(const std::string& name, const std::string& description, const std::function<IndexArrays()>& build) const;

 private:
  bool load(const std::string& base, const std::string& description, Entry& entry) const;
  void store(const std::string& base, const std::string& description, const IndexArrays& arrays) const;

  files::FileSystem& disk_;
  std::string directory_;
};

}  // namespace metroplex::data
