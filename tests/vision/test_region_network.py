"""The detector of section 3.3 of the VGPMIL paper, with a small made network."""

from __future__ import annotations

import builtins
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bagwise.evaluate import box_iou, corloc
from bagwise.models.presets import preset
from bagwise.models.variational import VGPMIL
from bagwise.vision import RegionNetwork, load_region_network, paper_detector
from tests.vision.test_detection import make_scenes

torch = pytest.importorskip("torch")
pytest.importorskip("cv2")


class SmallNetwork(torch.nn.Module):
    """The parts of torchvision's Faster R-CNN: images are doubled, maps are their block means."""

    def __init__(self):
        super().__init__()
        self.backbone = torch.nn.AvgPool2d(2)
        self.roi_heads = SimpleNamespace(box_roi_pool=self.pool, box_head=torch.nn.Identity())

    def transform(self, images):
        double = torch.nn.functional.interpolate(images[0][None], scale_factor=2)
        return SimpleNamespace(tensors=double, image_sizes=[tuple(double.shape[2:])]), None

    def rpn(self, images, maps):
        """Windows, those that differ most from the mean of the image first."""
        height, width = images.image_sizes[0]
        corners = torch.tensor(
            [
                [x, y, x + 36, y + 32]
                for y in range(0, height - 31, 8)
                for x in range(0, width - 35, 8)
            ],
            dtype=torch.float32,
        )
        means = self.pool(maps, [corners], images.image_sizes)
        order = (means - means.mean(0)).abs().sum(1).argsort(descending=True)
        return [corners[order]], None

    def pool(self, maps, boxes, sizes):
        assert tuple(2 * s for s in maps.shape[2:]) == tuple(sizes[0])
        rows = []
        for x0, y0, x1, y1 in boxes[0].tolist():
            block = maps[0, :, int(y0 / 2) : int(y1 / 2) + 1, int(x0 / 2) : int(x1 / 2) + 1]
            rows.append(torch.cat([block.mean((1, 2)), block.std((1, 2))]))
        return torch.stack(rows)


def test_boxes_are_in_pixels_of_the_image():
    image = np.zeros((64, 80, 3), dtype=np.uint8)
    image[16:32, 24:42] = 255
    network = RegionNetwork(network=SmallNetwork(), n_boxes=5)
    boxes = network.propose(image)
    assert boxes.shape == (5, 4)
    assert box_iou(boxes[:1], [[24, 16, 18, 16]])[0, 0] > 0.9
    inside, outside = network.extract(image, [[25, 17, 15, 13], [50, 40, 15, 13]])
    assert inside[:3].min() > 0.99
    assert outside[:3].max() < 0.01


def test_the_papers_pipeline_finds_objects_from_image_labels():
    images, labels, boxes = make_scenes(24)
    detector = paper_detector(SmallNetwork(), random_state=0)
    assert detector.proposals.n_boxes == 50
    assert detector.pca == 500
    described = detector.describe(images)
    assert (described.sizes == 50).all()
    detector.fit(described, labels[:, None], class_names=["red"])
    model = detector.classifiers_[0]
    assert isinstance(model, VGPMIL)
    printed = preset("vgpmil-paper").get_params()
    assert {k: v for k, v in model.get_params().items() if k != "random_state"} == {
        k: v for k, v in printed.items() if k != "random_state"
    }
    positive = np.flatnonzero(labels)
    truth = [boxes[i] for i in positive]
    best = [detections.boxes[0] for detections in detector.predict(described)]
    # Such a detector is content with a box that holds much of the object.
    assert corloc([best[i] for i in positive], truth, threshold=0.25) > 0.9
    top = [detections.scores[0] for detections in detector.predict(described)]
    assert roc_auc_score(labels, top) == 1


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="'network' parameter of RegionNetwork"):
        RegionNetwork().propose(np.zeros((40, 40, 3), dtype=np.uint8))
    load = builtins.__import__

    def without(name, *args, **more):
        if name.startswith("torchvision"):
            raise ImportError(name)
        return load(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"\.\[torchvision\]"):
        load_region_network(tmp_path / "weights.pth")
