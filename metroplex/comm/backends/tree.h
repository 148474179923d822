// A group of any size as a backend in which nobody speaks to more than a few: made of one small group for each level
// of the rank tree. For short texts and numbers in host memory: what members bring is gathered along the tree in
// member 0, worked on there in group order, and handed down again. No all-to-all and no p2p.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/backends/backend.h"

namespace metroplex::comm {

// Makes the backend of one level: `indices` are members of the large group, the caller among them.
using LevelFactory =
    std::function<std::shared_ptr<GroupBackend>(const std::string& level, const std::vector<int>& indices)>;

std::shared_ptr<GroupBackend> make_tree_backend(int index, int size, const LevelFactory& make_level);

}  // namespace metroplex::comm
