#include "checkpoint/tensor_source.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "checkpoint/pieces.h"
#include "files/json_text.h"

namespace metroplex::checkpoint {

void TensorSource::add(files::TensorForm tensor) {
  index_[{tensor.name, tensor.kind}] = tensors_.size();
  tensors_.push_back(std::move(tensor));
  read_.push_back(false);
}

const files::TensorForm* TensorSource::find(const std::string& name, const std::string& kind) const {
  const auto it = index_.find({name, kind});
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

void TensorSource::mark_read(const std::string& name, const std::string& kind) {
  const auto it = index_.find({name, kind});
  if (it != index_.end()) read_[it->second] = true;
}

// Sends index ranges: a rank reads adjacent tensors, so there are few.
std::vector<std::string> TensorSource::unread(Exchange& exchange) const {
  std::ostringstream mine;
  for (size_t begin = 0, end = 0; begin < read_.size(); begin = end + 1) {
    for (end = begin; end < read_.size() && read_[end]; ++end) {}
    if (end > begin) mine << begin << ' ' << end << ' ';
  }
  std::vector<bool> taken(read_.size());
  for (const std::string& text : exchange.gather(mine.str())) {
    std::istringstream ranges(text);
    for (size_t begin = 0, end = 0; ranges >> begin >> end;)
      std::fill(taken.begin() + static_cast<ptrdiff_t>(begin), taken.begin() + static_cast<ptrdiff_t>(end), true);
  }
  std::string left;
  for (size_t i = 0; i < taken.size(); ++i) left += taken[i] ? '1' : '0';
  left = exchange.broadcast(left);
  std::vector<std::string> labels;
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i] == '0') labels.push_back(label(tensors_[i].name, tensors_[i].kind));
  }
  return labels;
}

void TensorSource::fill(const Target& target) {
  const std::string what = base::concat("'", directory_, "', ", label(target.name, target.kind));
  const auto it = index_.find({target.name, target.kind});
  if (it == index_.end()) {
    std::vector<std::string> names;
    for (const auto& [key, i] : index_) {
      if (key.second == target.kind) names.push_back(key.first);
    }
    const std::string near = base::nearest_name(target.name, names);
    base::throw_error(
        "checkpoint",
        base::concat(what, " is not in the checkpoint, which has ", names.size(), " tensors of this kind",
                     near.empty() ? "" : "; the nearest name is '" + files::printable(near) + "'"));
  }
  const files::TensorForm& tensor = tensors_[it->second];
  MPX_CHECK(tensor.shape == target.global_shape, "checkpoint", what, " has shape ", describe_shape(tensor.shape),
            ", but the run requires ", describe_shape(target.global_shape),
            "; set the model section as in the checkpoint's config");
  MPX_CHECK(tensor.dtype == target.dtype, "checkpoint", what, " has dtype ", files::dtype_name(tensor.dtype),
            ", but the run requires ", files::dtype_name(target.dtype));
  read_[it->second] = true;
  read(it->second, region_of(target), target.data);
}

}  // namespace metroplex::checkpoint
