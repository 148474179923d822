// A cache of index files, which are expensive to build, next to the data and shared by all ranks. The name of an
// entry contains the hash of a description of all its inputs. An entry consists of HASH-NAME-ARRAY.npy per array and
// HASH-NAME-description.txt, written last, with the checksums. One rank builds under a lock and the others wait. If
// locks do not work, each rank builds; atomic renames make this harmless. An incomplete or modified entry is rebuilt.
// If nothing can be written, the arrays stay in memory.
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
  // With an empty directory everything stays in memory. The disk must outlive the cache.
  IndexCache(files::FileSystem& disk, std::string directory) : disk_(disk), directory_(std::move(directory)) {}

  class Entry {
   public:
    // Valid as long as the entry. Throws base::Error if there is no such array of this type.
    template <class T>
    std::span<const T> array(const std::string& name) const {
      return arrays_.at(name).as<T>();
    }
    bool built = false;  // by this call, not found in the cache

   private:
    friend class IndexCache;
    std::map<std::string, files::NpyArray> arrays_;
  };

  // Returns the cached arrays of `description`, or calls `build` and stores the result. Safe for concurrent threads
  // and processes.
  Entry get(const std::string& name, const std::string& description, const std::function<IndexArrays()>& build) const;

 private:
  bool load(const std::string& base, const std::string& description, Entry& entry) const;
  void store(const std::string& base, const std::string& description, const IndexArrays& arrays) const;

  files::FileSystem& disk_;
  std::string directory_;
};

}  // namespace metroplex::data
