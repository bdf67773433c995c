"""XMP sidecars: a name as a keyword, a hierarchical tag and a region, in the layout that digiKam writes and reads."""

from collections.abc import Iterator
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

from insclr.data.decode import Box

_NAMESPACES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "digiKam": "http://www.digikam.org/ns/1.0/",
    "lr": "http://ns.adobe.com/lightroom/1.0/",
    "mwg-rs": "http://www.metadataworkinggroup.com/schemas/regions/",
    "stArea": "http://ns.adobe.com/xmp/sType/Area#",
}
_OWN = "Things"  # the parent of our tags
_PARENTS = (_OWN, "People")  # of tags that name what a photo shows
_SIDECAR = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF{namespaces}>
  <rdf:Description rdf:about="">
   <dc:subject><rdf:Bag><rdf:li>{name}</rdf:li></rdf:Bag></dc:subject>
   <digiKam:TagsList><rdf:Seq><rdf:li>{own}/{name}</rdf:li></rdf:Seq></digiKam:TagsList>
   <lr:hierarchicalSubject><rdf:Bag><rdf:li>{own}|{name}</rdf:li></rdf:Bag></lr:hierarchicalSubject>{region}
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""
_REGION = """
   <mwg-rs:Regions rdf:parseType="Resource"><mwg-rs:RegionList><rdf:Bag><rdf:li>
    <rdf:Description mwg-rs:Name={name} mwg-rs:Type="Focus">
     <mwg-rs:Area stArea:x="{x:.6f}" stArea:y="{y:.6f}" stArea:w="{w:.6f}" stArea:h="{h:.6f}"
      stArea:unit="normalized"/>
    </rdf:Description>
   </rdf:li></rdf:Bag></mwg-rs:RegionList></mwg-rs:Regions>"""


class UnclearSidecar(ValueError):
    """A sidecar that names nothing, or several things."""


def sidecar(name: str, box: Box | None) -> str:
    """The text of a sidecar; `box` is x1, y1, x2, y2 as fractions of the photo."""
    namespaces = "".join(f' xmlns:{short}="{long}"' for short, long in _NAMESPACES.items())
    region = ""
    if box is not None:
        x1, y1, x2, y2 = box
        region = _REGION.format(name=quoteattr(name), x=(x1 + x2) / 2, y=(y1 + y2) / 2, w=x2 - x1, h=y2 - y1)
    return _SIDECAR.format(namespaces=namespaces, own=_OWN, name=escape(name), region=region)


def read_sidecar(content: bytes) -> tuple[str, Box | None]:
    """The name that a sidecar gives, and its region; UnclearSidecar where it names nothing or several things.

    A region counts first, then a tag below Things or People, then a keyword that is the only one.
    """
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise UnclearSidecar(f"no XML ({error})") from error
    regions = list(_regions(root))
    if regions:
        return _only({name for name, _ in regions}), regions[0][1] if len(regions) == 1 else None
    tags = {
        tag.replace("|", "/").partition("/")
        for key in ("digiKam:TagsList", "lr:hierarchicalSubject")
        for tag in _items(root, key)
    }
    below = {rest for parent, _, rest in tags if parent in _PARENTS and rest}
    return _only(below or set(_items(root, "dc:subject"))), None


def _only(names: set[str]) -> str:
    if len(names) != 1:
        raise UnclearSidecar(f"{len(names)} names")
    return names.pop()


def _items(root: ElementTree.Element, key: str) -> Iterator[str]:
    for found in root.iter(_full(key)):
        for item in found.iter(_full("rdf:li")):
            if item.text and item.text.strip():
                yield item.text.strip()


def _regions(root: ElementTree.Element) -> Iterator[tuple[str, Box | None]]:
    """Every named region, written as attributes or as elements."""
    for item in root.iter():
        name = _value(item, "mwg-rs:Name").strip()
        if not name:
            continue
        area = next(item.iter(_full("mwg-rs:Area")), None)
        if area is not None and len(area) == 1 and not area.attrib.get(_full("stArea:x")):
            area = area[0] if _value(area[0], "stArea:x") else area
        try:
            x, y, w, h = (float(_value(area, f"stArea:{side}")) for side in "xywh")  # type: ignore[arg-type]
        except (TypeError, ValueError, AttributeError):
            yield name, None
            continue
        box = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        inside = all(-0.01 <= side <= 1.01 for side in box) and w > 0 and h > 0
        yield name, tuple(round(min(max(side, 0.0), 1.0), 4) for side in box) if inside else None  # type: ignore[misc]


def _value(element: ElementTree.Element, key: str) -> str:
    return element.attrib.get(_full(key)) or element.findtext(_full(key)) or ""


def _full(key: str) -> str:
    short, _, name = key.partition(":")
    return f"{{{_NAMESPACES[short]}}}{name}"
