// Times of transfers that share links, computed by hand.
#include "price/shared_links.h"

#include <gtest/gtest.h>

namespace metroplex::test::shared_links_test {
namespace {

using price::Cluster;
using price::SharedLinks;
using price::SharedTransferPtr;

const Cluster kCluster{{{"nvlink", 8, {}}, {"network", 0, {}}}};
constexpr int kFirst = 0, kSecond = 0, kThird = 0;  // communicators, identified by address

TEST(SharedLinks, RunsASingleTransferAtFullRate) {
  SharedLinks links(kCluster);
  const SharedTransferPtr one = links.issue(&kFirst, 3, {2, {5, 1}});
  EXPECT_DOUBLE_EQ(links.finish(*one).start_s, 3);
  EXPECT_DOUBLE_EQ(links.finish(*one).end_s, 3 + 2 + 5);
}

TEST(SharedLinks, SharesTheBandwidthOfADomain) {
  SharedLinks links(kCluster);
  const SharedTransferPtr large = links.issue(&kFirst, 0, {0, {10, 0}}),
                          small = links.issue(&kSecond, 4, {0, {1, 0}});
  EXPECT_DOUBLE_EQ(links.finish(*small).end_s, 6);   // half of the rate
  EXPECT_DOUBLE_EQ(links.finish(*large).end_s, 11);  // 10 s and the second of the other transfer
  const SharedTransferPtr later = links.issue(&kSecond, 20, {0, {2, 0}});
  EXPECT_DOUBLE_EQ(links.finish(*later).end_s, 22);
}

TEST(SharedLinks, DividesTheRateByThree) {
  SharedLinks links(kCluster);
  links.issue(&kFirst, 0, {0, {6, 0}});
  links.issue(&kSecond, 0, {0, {6, 0}});
  const SharedTransferPtr third = links.issue(&kThird, 0, {0, {2, 0}});
  EXPECT_DOUBLE_EQ(links.finish(*third).end_s, 6);
}

TEST(SharedLinks, DoesNotShareBetweenDomains) {
  SharedLinks links(kCluster);
  const SharedTransferPtr inner = links.issue(&kFirst, 0, {0, {10, 0}}),
                          outer = links.issue(&kSecond, 0, {0, {0, 8}});
  EXPECT_DOUBLE_EQ(links.finish(*outer).end_s, 8);
  EXPECT_DOUBLE_EQ(links.finish(*inner).end_s, 10);
}

// The first transfer needs a quarter of the inner link while it is limited by the network.
TEST(SharedLinks, CountsTheUseOfEveryDomain) {
  SharedLinks links(kCluster);
  const SharedTransferPtr both = links.issue(&kFirst, 0, {0, {2, 8}}), inner = links.issue(&kSecond, 0, {0, {4, 0}});
  EXPECT_DOUBLE_EQ(links.finish(*inner).end_s, 4 * 1.25);
  EXPECT_DOUBLE_EQ(links.finish(*both).end_s, 9);
}

TEST(SharedLinks, SharesNothingDuringTheLatency) {
  SharedLinks links(kCluster);
  const SharedTransferPtr one = links.issue(&kFirst, 0, {4, {2, 0}}), other = links.issue(&kSecond, 0, {0, {4, 0}});
  EXPECT_DOUBLE_EQ(links.finish(*other).end_s, 4);
  EXPECT_DOUBLE_EQ(links.finish(*one).end_s, 6);
}

TEST(SharedLinks, RunsACommunicatorInOrder) {
  SharedLinks links(kCluster);
  links.issue(&kFirst, 0, {0, {3, 0}});
  const SharedTransferPtr next = links.issue(&kFirst, 1, {1, {2, 0}});
  EXPECT_DOUBLE_EQ(links.finish(*next).start_s, 3);
  EXPECT_DOUBLE_EQ(links.finish(*next).end_s, 3 + 1 + 2);
  const SharedTransferPtr barrier = links.issue(&kFirst, 6, {1, {0, 0}});
  EXPECT_DOUBLE_EQ(links.finish(*barrier).end_s, 7);
}

TEST(SharedLinks, KeepsTheRateOfUnsharedLinks) {
  const Cluster cluster{{{.name = "link", .shared = false}}};
  SharedLinks links(cluster);
  links.issue(&kFirst, 0, {0, {5}});
  const SharedTransferPtr other = links.issue(&kSecond, 0, {0, {5}});
  EXPECT_DOUBLE_EQ(links.finish(*other).end_s, 5);
}

}  // namespace
}  // namespace metroplex::test::shared_links_test
